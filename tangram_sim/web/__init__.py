"""A page on one's own machine: forms for the verbs, each answered by a process that ends with its request."""
