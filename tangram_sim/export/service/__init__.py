"""Files that start a planned service: engine commands, Kubernetes manifests, router weights."""
