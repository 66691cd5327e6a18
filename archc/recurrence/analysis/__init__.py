"""The kind of recurrence that a Fold is, found before its chunked form is derived."""
