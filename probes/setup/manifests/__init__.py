"""Manifests: what a fleet of this node needs, as Kubernetes objects, boot files, scripts and snippets."""
