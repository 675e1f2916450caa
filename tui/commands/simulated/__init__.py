"""What commands do to simulated nodes between two runs of gdrtop."""
