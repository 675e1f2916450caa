"""Checks of what lasts while gdrtop watches: of jobs, and of ports and GPUs under load."""
