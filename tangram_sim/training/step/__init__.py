"""A whole training step as one op graph: stages, links between them, sources of its prediction error."""
