"""PCI functions, ports and networks of a simulated node."""
