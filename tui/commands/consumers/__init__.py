"""What other programs expect of `gdrtop check`: contracts, and what is saved."""
