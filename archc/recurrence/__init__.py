"""Layer IR -> what kind of recurrence it holds."""
