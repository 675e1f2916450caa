"""What other programs expect of `gdrtop check`: one contract a file."""
