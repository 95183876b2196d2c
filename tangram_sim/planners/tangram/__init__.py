"""The Tangram planner: enumerate slices on islands, compose them, play the finalists."""
