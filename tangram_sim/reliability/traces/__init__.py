"""Step traces: measured training steps, operation by operation, and their readers."""
