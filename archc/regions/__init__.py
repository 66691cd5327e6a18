"""Token regions: the parts of a layer graph that are computed together."""
