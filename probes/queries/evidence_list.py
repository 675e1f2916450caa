"""Words and lists that several checks share: what is missing, how much of a list is shown."""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.unknown import Reason, Unknown
from probes.host.local import TREE_ONLY
from probes.queries.finding import Evidence, Outcome, unsure

SHOWN = 8
RDMA_DEVICES = "the RDMA devices"
KERNEL_LOG = "the kernel log"
PCI_FUNCTIONS = "the PCI functions"
NAMESPACE_OF_DEVICES = "needs the network namespace that the RDMA devices are in, a pod's for example"
LIKE_THESE = "more like these"
STAGED = (
    "NCCL copies GPU data through host memory. One report measured 10 instead of 180 GB/s (NVIDIA/nccl#1676)."
)
"""The impact of a node without GPUDirect RDMA."""


def needs(what: str, why: Unknown | str) -> str:
    """What a check that could not run needs: "needs root: the kernel log", "needs the GPUs (timed out)"."""
    if TREE_ONLY in str(why):
        return "needs a running node (this is a tree of files)"
    if isinstance(why, Unknown) and why.reason is Reason.NEEDS_ROOT:
        return f"needs root: {what}"
    return f"needs {what} ({why})"


def unsure_without(what: str, why: Unknown, *evidence: Evidence) -> Outcome:
    """Report a check that could not run for want of `what`, with the details as evidence."""
    seen = (Evidence(why.source, why.detail or why.reason.value),) if why.source else ()
    return unsure(needs(what, why), *evidence, *seen)


def several(words: Iterable[str], most: int = SHOWN) -> str:
    """Each once, as "mlx5_0, mlx5_1 and 3 more"."""
    each = tuple(dict.fromkeys(words))
    more = f" and {len(each) - most} more" if len(each) > most else ""
    return ", ".join(each[:most]) + more


def few(evidence: Iterable[Evidence], more: str = "more") -> tuple[Evidence, ...]:
    """Each once; what is left out is counted where the first of that was seen."""
    each = tuple(dict.fromkeys(evidence))
    left = each[SHOWN:]
    return (*each[:SHOWN], Evidence(left[0].source, f"and {len(left)} {more}")) if left else each


def at_most(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """All as they come, twice what was seen twice; what is left out is counted where the first was seen."""
    every = tuple(evidence)
    left = every[SHOWN:]
    return (*every[:SHOWN], Evidence(every[0].source, f"and {len(left)} more")) if left else every
