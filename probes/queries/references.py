"""The documents that checks of several files cite."""

from __future__ import annotations

NCCL_VARIABLES = (
    "NCCL environment variables, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
)
PEERMEM_MANUAL = "NVIDIA driver README, nvidia-peermem, https://download.nvidia.com/XFree86/Linux-x86_64/"
PEERMEM_SOURCE = "https://github.com/NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia-peermem"
DRIVER_README = "NVIDIA driver README, https://download.nvidia.com/XFree86/Linux-x86_64/570.124.06/README/"
DRIVER_GUIDE = "NVIDIA driver installation guide, https://docs.nvidia.com/datacenter/tesla/"
