"""What all commands share of the command line."""
