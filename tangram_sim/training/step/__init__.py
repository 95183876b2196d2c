"""A whole training step as one op graph: stages, links between them, what its error comes from."""
