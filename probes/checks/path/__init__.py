"""Checks of the GPUDirect RDMA path."""
