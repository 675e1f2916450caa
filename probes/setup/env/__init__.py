"""The environment of NCCL, UCX and NVSHMEM: what a node needs, what values mean, what a file sets."""
