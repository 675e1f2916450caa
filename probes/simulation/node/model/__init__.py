"""What a simulated node is made of: its description, its tree of files, its programs."""
