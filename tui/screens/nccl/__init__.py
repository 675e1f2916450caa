"""What NCCL says in the logs of jobs."""
