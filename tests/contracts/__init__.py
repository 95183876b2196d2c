"""What others build on: plug-ins, verbs and keys, the layers."""
