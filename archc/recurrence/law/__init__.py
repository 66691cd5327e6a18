"""Composition laws: what a run of tokens does to a state, derived or given."""
