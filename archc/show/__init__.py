"""Stages of a compilation as listings and plain data: normal forms, chunked forms, plans."""
