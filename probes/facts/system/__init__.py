"""The platform, NUMA nodes, services, packages, tools and the network."""
