"""Questions to NCCL's RAS service: when they may be asked, and what the answers mean."""
