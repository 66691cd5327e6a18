"""Facts about values: how large they may be, and how a gate is written as a logarithm."""
