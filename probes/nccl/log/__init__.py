"""What NCCL and PyTorch write to a job's log: facts, verdict and explained errors."""
