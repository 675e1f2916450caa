"""RDMA devices, ports and their counters."""
