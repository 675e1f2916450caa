"""Why an engine moves KV caches over TCP or through host memory: by a setting, or silently.

fall_backs.toml has the texts. Each function here looks for one sign, and returns it as evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import NamedTuple

from probes.base.data_files import read_toml
from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.jobs.processes import Process
from probes.queries.jobs import (
    excludes_cuda,
    excludes_rdma,
    expandable_variable,
    forces_tcp,
    lacks_ucx_module,
    sees_no_verbs_file,
)


class Situation(NamedTuple):
    """What may explain a fall-back."""

    process: Process
    is_ucx: bool  # UCX chooses the transport
    has_nics: bool  # the node has RDMA NICs
    nvlinks: Maybe[int]  # active ones of its GPUs; the least
    has_neighbor: bool  # another engine is on this node
    has_other_pids: bool  # and in another PID namespace


@frozen
class Cause:
    """What fall_backs.toml says of a cause."""

    cure: str
    source: str
    cause: str = ""  # "": a step that needs no sign


@cache
def causes() -> dict[str, Cause]:
    """Return the causes by id, in the order in which they count."""
    return {name: Cause(**row) for name, row in read_toml(__package__, "fall_backs.toml").items()}


def steps(signs: Collection[str], is_ucx: bool) -> tuple[str, ...]:
    """Return the ids of the steps to take, where these signs were seen, in their order."""
    unseen = "ucx-unseen" if is_ucx else "other-unseen"
    has_cause = any(causes()[name].cause for name in signs)
    wanted = {*signs, *([] if has_cause else [unseen]), *(["ucx-emulation"] if is_ucx else [])}
    return tuple(name for name in causes() if name in wanted)


def _value(process: Process, name: str) -> str:
    return known(process.environment, {}).get(name, "")


def _set(process: Process, name: str) -> Evidence:
    return Evidence(f"/proc/{process.pid}/environ", f"{name}={_value(process, name)}")


def asks_for_tcp(about: Situation) -> str:
    """Return the setting or the fact by which an engine uses TCP on purpose; "": none."""
    process = about.process
    tls = _value(process, "UCX_TLS")
    if about.is_ucx and excludes_rdma(tls) and "tcp" in tls.split(","):
        return f"UCX_TLS={tls}"
    if _value(process, "UCCL_P2P_TRANSPORT") == "tcp":
        return "UCCL_P2P_TRANSPORT=tcp"
    return asks_for_host(process) or ("" if about.has_nics else "no RDMA NIC on this node")


def asks_for_host(process: Process) -> str:
    """Return the option by which KV caches are in host memory; "": none."""
    return "kv_buffer_device=cpu" if process.serving_options.get("kv_buffer_device") == "cpu" else ""


def _forced(about: Situation) -> Evidence | None:
    return _set(about.process, "MC_FORCE_TCP") if forces_tcp(about.process) else None


def _excludes_rdma(about: Situation) -> Evidence | None:
    value = _value(about.process, "UCX_TLS")
    excluded = {name.strip() for name in value[1:].split(",")} if value.startswith("^") else set()
    is_excluded = excluded & {"ib", "rc"} or excludes_rdma(value)
    return _set(about.process, "UCX_TLS") if about.is_ucx and value and is_excluded else None


def _net_devices(about: Situation) -> Evidence | None:
    # "mlx5_0:1" is a port of an RDMA device, "eth0" an interface.
    names = _value(about.process, "UCX_NET_DEVICES").removeprefix("^").split(",")
    is_named = any(":" in name or name in ("", "all") for name in names)
    is_excluded = _value(about.process, "UCX_NET_DEVICES").startswith("^")
    return None if is_named or is_excluded or not about.is_ucx else _set(about.process, "UCX_NET_DEVICES")


def _no_device_files(about: Situation) -> Evidence | None:
    nodes, path = about.process.rdma_nodes, f"/proc/{about.process.pid}/root/dev/infiniband"
    shown = "not there" if isinstance(nodes, Unknown) else "no uverbs file"
    return Evidence(path, shown) if sees_no_verbs_file(about.process) else None


def _lacks(about: Situation, module: str) -> Evidence | None:
    if not about.is_ucx or not lacks_ucx_module(about.process, module):
        return None
    return Evidence(f"/proc/{about.process.pid}/maps", f"libucp, without {module}")


def _without_cuda(about: Situation) -> Evidence | None:
    is_excluded = excludes_cuda(_value(about.process, "UCX_TLS"))
    return _set(about.process, "UCX_TLS") if is_excluded else _lacks(about, "libuct_cuda")


def _pid_namespaces(about: Situation) -> Evidence | None:
    if not about.is_ucx or not about.has_other_pids:
        return None
    return Evidence(f"/proc/{about.process.pid}/ns/pid", "another one than that of the other engine")


def _no_nvlink(about: Situation) -> Evidence | None:
    is_on = _value(about.process, "UCX_CUDA_IPC_ENABLE_GET_ZCOPY") in ("on", "y", "yes", "1")
    if not about.is_ucx or not about.has_neighbor or about.nvlinks != 0 or is_on:
        return None
    return Evidence("NVML", "no active NVLink")


def _expandable(about: Situation) -> Evidence | None:
    name = expandable_variable(lambda name: _value(about.process, name))
    return _set(about.process, name) if name and about.is_ucx and about.has_neighbor else None


def _plugin_dir(about: Situation) -> Evidence | None:
    is_set = about.is_ucx and _value(about.process, "NIXL_PLUGIN_DIR")
    return _set(about.process, "NIXL_PLUGIN_DIR") if is_set else None


_SIGNS: dict[str, Callable[[Situation], Evidence | None]] = {
    "mooncake-forced-to-tcp": _forced,
    "ucx-excludes-rdma": _excludes_rdma,
    "ucx-net-devices": _net_devices,
    "no-device-files": _no_device_files,
    "ucx-without-verbs": lambda about: _lacks(about, "libuct_ib"),
    "ucx-without-cuda": _without_cuda,
    "pid-namespaces": _pid_namespaces,
    "no-nvlink": _no_nvlink,
    "expandable-segments": _expandable,
    "nixl-plugin-dir": _plugin_dir,
}


def fall_backs(about: Situation) -> tuple[tuple[str, Evidence], ...]:
    """Return the causes whose sign is there, with the sign; (): gdrtop sees none."""
    found = ((name, sign(about)) for name, sign in _SIGNS.items())
    return tuple((name, evidence) for name, evidence in found if evidence is not None)
