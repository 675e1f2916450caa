"""The registration of GPU memory with NICs: what is tried, and what the answers mean."""
