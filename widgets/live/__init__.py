"""What runs on the node now: jobs, ranks, NICs, GPUs, events, and the evidence for each."""
