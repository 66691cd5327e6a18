"""The kind of recurrence that a Recurrence is, found before its chunked form is derived."""
