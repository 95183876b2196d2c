"""Large clusters: copies of pipeline patterns, combined by a master linear program."""
