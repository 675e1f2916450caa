"""GPUs and CUDA."""
