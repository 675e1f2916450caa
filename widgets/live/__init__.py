"""What runs on the node now: jobs, ranks, NICs, GPUs, events, and the evidence for each."""

TABLE_NAMES = {"ranks": "ranks", "nics": "NICs", "gpus": "GPUs"}
"""The tables with columns to choose from; here, because every command with a configuration loads it."""
