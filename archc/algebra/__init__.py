"""Layer IR -> layer IR: equal values that cost less, by algebra that knows no architecture."""
