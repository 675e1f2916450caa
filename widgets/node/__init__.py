"""Views of the node: verdict, topology, matrix, modules, traffic, jobs."""
