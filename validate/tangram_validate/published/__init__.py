"""Published training runs: rows of a CSV file read as nouns, predicted, and scored."""
