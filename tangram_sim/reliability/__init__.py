"""Training time lost to slow ranks and to failures, and what reduces the loss."""
