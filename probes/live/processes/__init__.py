"""Processes that use RDMA, their jobs, and the path of their data."""
