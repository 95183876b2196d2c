"""What a plan loses to slow ranks and to failures, and what helps."""
