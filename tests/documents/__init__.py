"""What pages, examples and packages say is so."""
