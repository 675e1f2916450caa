"""Limited lists of names and evidence, and the words that several checks share."""

from __future__ import annotations

from collections.abc import Iterable

from probes.queries.finding import Evidence

SHOWN = 8
RDMA_DEVICES = "the RDMA devices"
KERNEL_LOG = "the kernel log"
PCI_FUNCTIONS = "the PCI functions"
NAMESPACE_OF_DEVICES = "needs the network namespace that the RDMA devices are in, for example a pod's"
LIKE_THESE = "more like these"
STAGED = (
    "NCCL copies GPU data through host memory. One report measured 10 instead of 180 GB/s (NVIDIA/nccl#1676)."
)
"""The impact of a node without GPUDirect RDMA."""


def join_limited(words: Iterable[str], most: int = SHOWN) -> str:
    """Join distinct words, as "mlx5_0, mlx5_1 and 3 more"."""
    each = tuple(dict.fromkeys(words))
    more = f" and {len(each) - most} more" if len(each) > most else ""
    return ", ".join(each[:most]) + more


def first_distinct(evidence: Iterable[Evidence], more: str = "more") -> tuple[Evidence, ...]:
    """Return the first distinct evidence; the rest is counted under the source of the first one left out."""
    each = tuple(dict.fromkeys(evidence))
    left = each[SHOWN:]
    return (*each[:SHOWN], Evidence(left[0].source, f"and {len(left)} {more}")) if left else each


def first_n(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the first evidence with its repetitions; the rest is counted under the first source."""
    every = tuple(evidence)
    left = every[SHOWN:]
    return (*every[:SHOWN], Evidence(every[0].source, f"and {len(left)} more")) if left else every
