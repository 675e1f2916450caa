"""What NCCL asks libibverbs and libmlx5 about each RDMA device: DMA-BUF, and its Data Direct function.

A child process runs verbs_child.py and forks once per device: a provider library may print, hang or crash,
which then costs only the answer for one device.
"""

from __future__ import annotations

import re
import sys
from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from probes.host import verbs_child
from probes.host.verbs_child import DATA_DIRECT, DMABUF

if TYPE_CHECKING:
    from probes.base.unknown import Maybe

    T = TypeVar("T")

PROBE_SECONDS = 4.0  # of the child process
LIBRARY, MLX5_LIBRARY = "libibverbs.so.1", "libmlx5.so.1"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def probe_dmabuf(devices: Sequence[str], library: str = LIBRARY) -> dict[str, Maybe[int]]:
    """Return the errno of `ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0)` for each RDMA device.

    EOPNOTSUPP and EPROTONOSUPPORT: kernel or driver do not support it; anything else, normally EBADF: they do
    (NCCL src/transport/net_ib/gdr.cc).
    """
    return _probe(DMABUF, devices, (library, MLX5_LIBRARY), int)


def probe_data_direct(
    devices: Sequence[str], libraries: tuple[str, str] = (LIBRARY, MLX5_LIBRARY)
) -> dict[str, Maybe[str]]:
    """Return the path of each RDMA device's Data Direct function below /sys; "": it has none.

    NOT_THERE: libmlx5 is older than rdma-core 54, or the driver does not know of such functions
    (mlx5dv_get_data_direct_sysfs_path(3); NCCL src/transport/net_ib/init.cc).
    """
    return _probe(DATA_DIRECT, devices, libraries, str)


def _probe(
    question: str, devices: Sequence[str], libraries: tuple[str, str], kind: type[T]
) -> dict[str, Maybe[T]]:
    from probes.base.unknown import Reason, Unknown
    from probes.host.command import run_program

    valid = [device for device in devices if _NAME.fullmatch(device)]
    results: dict[str, Maybe[T]] = {
        device: Unknown(Reason.MALFORMED, f"{question} on {device}", "invalid RDMA device name")
        for device in devices
        if device not in valid
    }
    if not valid:
        return results
    child = [sys.executable, "-I", "-S", verbs_child.__file__, question, *libraries, *valid]
    output = run_program(child, PROBE_SECONDS, (question, *valid))
    if isinstance(output, Unknown):
        return {**results, **dict.fromkeys(valid, output)}
    try:
        answers = dict(literal_eval(line) for line in output.stdout.splitlines())
        return {**results, **{device: _answer(question, device, answers[device], kind) for device in valid}}
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError):
        failed = Unknown(Reason.IO_ERROR, libraries[0], f"the probe exited with status {output.exit_status}")
        return {**results, **dict.fromkeys(valid, failed)}


def _answer(question: str, device: str, answer: Mapping[str, Any], kind: type[T]) -> Maybe[T]:
    from probes.base.unknown import Reason, Unknown

    value = answer.get("answer")
    if isinstance(value, kind):
        return value
    return Unknown(Reason(answer["reason"]), f"{question} on {device}", str(answer["detail"])[:200])
