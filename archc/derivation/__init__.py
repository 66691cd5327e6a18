"""The derivation of a layer as a reader follows it: what was found, step by step, and a page of it."""
