"""What kind of recurrence a Fold is, before anything is derived of it."""
