"""Which bandwidth tests to run, with which options, and whom they affect."""
