"""A virtual GPU node with a real kernel, and gdrtop driven in it as a user would."""
