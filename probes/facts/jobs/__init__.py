"""Processes that use GPUs or RDMA, and their NCCL configuration files."""
