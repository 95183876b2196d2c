"""Launch configuration of training frameworks, written from a plan and read back."""
