"""One stage of a plan: its state, its ops and its price."""
