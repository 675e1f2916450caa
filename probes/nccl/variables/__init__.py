"""The variables of NCCL, UCX, NVSHMEM and libfabric: one place for meaning, defaults and values."""
