"""What runs on the node now: processes with RDMA resources, jobs, rates, events."""
