"""What NVLink lays between two GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import Gpu


def peers_of(gpu: Gpu | None) -> dict[str, int]:
    """BDF -> links of what a GPU's NVLinks lead to; empty where NVML does not say."""
    if gpu is None or isinstance(gpu.nvlink_peers, Unknown):
        return {}
    return dict(gpu.nvlink_peers)


def nvlinks_between(a: Gpu | None, b: Gpu | None, gpus: Mapping[str, Gpu]) -> int:
    """NVLinks that join two GPUs, straight or through NVSwitches; 0 where NVML names none.

    A peer that both have and that is no GPU of this node is an NVSwitch, also one that this virtual machine
    does not see (NCCL src/graph/xml.cc). A GPU that both have switches nothing: see `has_relay`.
    """
    of_a, of_b = peers_of(a), peers_of(b)
    straight = of_a.get(b.bdf if b else "", 0) or of_b.get(a.bdf if a else "", 0)
    if straight:
        return straight
    switches = [peer for peer in of_a if peer in of_b and peer not in gpus]
    return min(sum(of_a[one] for one in switches), sum(of_b[one] for one in switches))


def has_relay(a: Gpu | None, b: Gpu | None, gpus: Mapping[str, Gpu]) -> bool:
    """Whether a third GPU has NVLinks straight to both: NCCL's NVB (src/graph/paths.cc ncclTopoSetPaths)."""
    return any(peer in gpus and peer in peers_of(b) for peer in peers_of(a))
