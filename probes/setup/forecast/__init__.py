"""Whether GPUDirect RDMA is still there after a reboot: judged from files, for each installed kernel."""
