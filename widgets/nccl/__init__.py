"""Lines about what NCCL reports."""
