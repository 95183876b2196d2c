"""One stage of a plan: its state, its ops, its price."""
