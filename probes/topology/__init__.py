"""Paths between GPUs and NICs, in the words of nvidia-smi and of NCCL."""
