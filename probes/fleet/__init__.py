"""Many nodes: their names, a summary of each, and how they differ from the rest."""
