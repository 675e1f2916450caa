"""The operating system of a simulated node: services, boot loader, Kubernetes."""
