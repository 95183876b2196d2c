"""Plans in the coarse terms of whole-cluster planners, and the layer profiles they search on."""
