"""Large clusters: copies of pipeline patterns, mixed by a master program."""
