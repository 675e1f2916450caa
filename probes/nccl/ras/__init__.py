"""What NCCL's RAS service prints: the report of a job, and events."""
