"""Functions of elements: what is known of each, and intervals of their values."""
