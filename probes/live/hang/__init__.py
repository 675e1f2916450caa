"""A job that hangs: what every source knows, and the suspect."""
