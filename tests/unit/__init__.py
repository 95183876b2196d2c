"""One folder per room of the package, under its name."""
