"""What libibverbs and libmlx5 report about RDMA devices, and libcuda about GPUs, as NCCL asks them.

A library may take seconds, print, hang or crash: a child process runs library_child.py, which forks once per
RDMA device. It creates no context in libcuda and uses no GPU memory. Attribute numbers: cuda.h,
CUdevice_attribute.
"""

from __future__ import annotations

import os
import re
import sys
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine import library_child
from probes.host.machine.command import run_program
from probes.host.nvml import bdf_of
from probes.host.protocol import DMABUF_SUPPORTED, RDMA_SUPPORTED, CommandOutput, CudaGpu

T = TypeVar("T")
Child = Callable[[str, Sequence[str], float, tuple[str, ...]], Maybe[CommandOutput]]
"""Runs a Python file with arguments, in so many seconds; the last value is what the answer calls it."""

# Unlike a file as a program, an imported module is compiled once.
_RUN_CHILD = "import sys; sys.path.append(sys.argv.pop(1)); __import__(sys.argv.pop(1)).main(sys.argv[1:])"
CHILD_SECONDS = 4.0  # of a child process
VERBS_LIBRARY, MLX5_LIBRARY, CUDA_LIBRARY = "libibverbs.so.1", "libmlx5.so.1", "libcuda.so.1"
# If one of these is missing, cuInit would load modules and create device files (nvidia-modprobe(1)).
CUDA_NEEDS = ("/sys/module/nvidia", "/sys/module/nvidia_uvm", "/dev/nvidiactl", "/dev/nvidia-uvm")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BROKEN_ANSWERS = (ValueError, SyntaxError, KeyError, TypeError, AttributeError)


def run_child(
    file: str, arguments: Sequence[str], seconds: float, name: tuple[str, ...], is_patient: bool = True
) -> Maybe[CommandOutput]:
    """Run a program of gdrtop's on this machine; `is_patient`: as of `run_program`."""
    directory, file_name = os.path.split(file)
    module = file_name.removesuffix(".py")
    program = [sys.executable, "-I", "-S", "-c", _RUN_CHILD, directory, module, *arguments]
    return run_program(program, seconds, name, is_patient)


def probe_dmabuf(
    devices: Sequence[str], library: str = VERBS_LIBRARY, child: Child = run_child
) -> dict[str, Maybe[int]]:
    """Return the errno of `ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0)` for each RDMA device.

    EOPNOTSUPP and EPROTONOSUPPORT: kernel or driver do not support it; anything else, normally EBADF: they do
    (NCCL src/transport/net_ib/gdr.cc).
    """
    return _probe_verbs(library_child.DMABUF, devices, (library, MLX5_LIBRARY), int, child)


def probe_data_direct(
    devices: Sequence[str],
    libraries: tuple[str, str] = (VERBS_LIBRARY, MLX5_LIBRARY),
    child: Child = run_child,
) -> dict[str, Maybe[str]]:
    """Return the path of each RDMA device's Data Direct function below /sys; "": it has none.

    NOT_THERE: libmlx5 is older than rdma-core 54, or the driver does not know of such functions
    (mlx5dv_get_data_direct_sysfs_path(3); NCCL src/transport/net_ib/init.cc).
    """
    return _probe_verbs(library_child.DATA_DIRECT, devices, libraries, str, child)


def _probe_verbs(
    question: str, devices: Sequence[str], libraries: tuple[str, str], kind: type[T], child: Child
) -> dict[str, Maybe[T]]:
    valid = [device for device in devices if _NAME.fullmatch(device)]
    results: dict[str, Maybe[T]] = {
        device: Unknown(Reason.MALFORMED, f"{question} on {device}", "invalid RDMA device name")
        for device in devices
        if device not in valid
    }
    if not valid:
        return results
    arguments = (question, *libraries, *valid)
    output = child(library_child.__file__, arguments, CHILD_SECONDS, (question, *valid))
    if isinstance(output, Unknown):
        return {**results, **dict.fromkeys(valid, output)}
    try:
        answers = dict(literal_eval(line) for line in output.stdout.splitlines())
        return {**results, **{device: _verbs(question, device, answers[device], kind) for device in valid}}
    except _BROKEN_ANSWERS:
        failed = Unknown(Reason.IO_ERROR, libraries[0], f"the probe exited with status {output.exit_status}")
        return {**results, **dict.fromkeys(valid, failed)}


def _verbs(question: str, device: str, answer: Mapping[str, Any], kind: type[T]) -> Maybe[T]:
    value = answer.get("answer")
    if isinstance(value, kind):
        return value
    return Unknown(Reason(answer["reason"]), f"{question} on {device}", str(answer["detail"])[:200])


def probe_cuda(library: str = CUDA_LIBRARY, child: Child = run_child) -> Maybe[tuple[CudaGpu, ...]]:
    """Ask libcuda about every GPU that it lists; the driver must be loaded."""
    attributes = (str(RDMA_SUPPORTED), str(DMABUF_SUPPORTED))
    arguments = (library_child.CUDA, library, *attributes)
    output = child(library_child.__file__, arguments, CHILD_SECONDS, ("libcuda",))
    if isinstance(output, Unknown):
        return output
    try:
        answer = literal_eval(output.stdout)
        if "reason" in answer:
            return Unknown(Reason(answer["reason"]), CUDA_LIBRARY, str(answer["detail"])[:200])
        return tuple(_cuda_gpu(gpu) for gpu in answer["gpus"][: library_child.MAX_GPUS])
    except _BROKEN_ANSWERS:
        return Unknown(Reason.IO_ERROR, CUDA_LIBRARY, f"the probe exited with status {output.exit_status}")


def _cuda_gpu(answer: dict[str, Any]) -> CudaGpu:
    supported = [_supported(*attribute) for attribute in answer["attributes"]]
    return CudaGpu(printable(bdf_of(str(answer["bdf"])), 32), *supported)


def _supported(attribute: int, status: int, value: int) -> Maybe[bool]:
    if status:
        detail = f"CUDA error {int(status)}: the driver does not recognize this attribute"
        return Unknown(Reason.NOT_THERE, f"cuDeviceGetAttribute({attribute})", detail)
    return bool(value)
