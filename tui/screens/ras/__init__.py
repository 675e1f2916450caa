"""What NCCL's RAS service answers, only on request."""
