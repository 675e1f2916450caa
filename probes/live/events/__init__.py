"""What changed from one sample to the next."""
