"""Library functions of the language, written in the language: one `.arch` file a subject."""
