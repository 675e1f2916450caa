"""The only door to a node: files, read-only commands, NVML, verbs and CUDA."""
