"""Registers GPU memory with NICs for a moment, to prove what can be registered."""
