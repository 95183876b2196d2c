"""What must hold of whole answers, on generated cases."""
