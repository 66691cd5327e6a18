"""Layer IR -> layer IR: recurrences get their chunked forms."""
