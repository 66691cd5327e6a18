"""What of a layer is computed together: token regions, cut from the layer graph."""
