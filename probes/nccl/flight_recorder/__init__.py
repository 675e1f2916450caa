"""PyTorch's flight recorder: its dumps, and which rank the others wait for."""
