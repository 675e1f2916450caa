"""Many nodes: what they have in common, and a job that runs on several of them."""
