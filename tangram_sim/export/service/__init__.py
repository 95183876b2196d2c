"""A service's plan as what starts it: launch lines of engines, Kubernetes manifests, router weights."""
