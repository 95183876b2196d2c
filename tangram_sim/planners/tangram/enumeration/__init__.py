"""Which slice on which island is asked about, and what parallelizers answer."""
