"""What was run before."""
