"""What texts of programs and of the kernel mean for GPUDirect RDMA: the catalogue that every reader asks."""
