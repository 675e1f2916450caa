"""What a package upgrade would change, and the forecast of GPUDirect RDMA with it."""
