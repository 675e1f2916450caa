"""Views of the probes' facts: no I/O, no timers."""
