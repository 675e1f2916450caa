"""The Live screen: jobs, ranks, NICs, GPUs and what changed, now and in the last hour."""
