"""The Tangram planner: enumerate slices on islands, compose partial plans, simulate the best pipelines."""
