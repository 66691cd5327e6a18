"""Chunk ops, each defined once: its fields and formula, its type, what it costs and looks along."""
