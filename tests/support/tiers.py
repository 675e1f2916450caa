"""The two tiers: `make test` runs the usual cases of a long list, `make test-slow` the rest."""

import os
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, TypeVar

import pytest

from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.node.model.names import SIMULATED_NAMES

T = TypeVar("T")
# Nodes whose every test is in the fast tier. conftest.py puts what a test does with another one in the slow
# tier; a loop over nodes inside a fast test uses these.
USUAL_NODES = ("hgx-h100", "dgx-a100", "pcie-l40s", "gb200", "cloud-vm", "azure-nd-h100")
NEWER_NODES = frozenset(SIMULATED_NAMES) - frozenset(USUAL_NODES)
# Nodes that these files try only with EVERY_CASE: there they are like other nodes, and take a minute each.
FACTS_ALONE = ("vera-rubin", "aws-p6-b300")
_BEYOND_FACTS = (
    *("/tests/tui/screens/", "/tests/tui/runtime/", "/tests/probes/recording/"),
    *("/tests/tui/commands/test_re", "/tests/tui/commands/test_setup.py"),
    "/tests/tui/commands/test_after_reboot.py",
)
# Nodes on which GPUDirect RDMA can work: GB10 does not support it by design.
GDR_NODES = tuple(name for name in SIMULATED_NAMES if name != "dgx-spark")
# Nodes whose NICs have verbs: perftest runs there, and the kernel lists RDMA objects.
WITH_VERBS = tuple(name for name in SIMULATED_NAMES if name != "slingshot")
# The rate of the others' NICs is not public.
WITH_RATES = tuple(name for name in WITH_VERBS if name not in ("vera-rubin", "aws-p6-b300"))
MEASURABLE = tuple(name for name in WITH_RATES if name in GDR_NODES)
# One or two faults of each area, for tests that do the same with every fault.
USUAL_FAULTS = frozenset(
    {
        "no-gdr-path",
        "nvidia-not-loaded",
        "module-blacklisted-cmdline",
        "kernel-forbids-modules-lockdown",
        "peermem-not-loaded",
        "peermem-unknown-symbol-inbox-core",
        "nv-peer-mem-conflict-service",
        "dmabuf-kernel-config",
        "libcuda-link-missing",
        "acs-on",
        "iommu-translated",
        "pcie-link-degraded-width",
        "half-rate",
        "port-down",
        "roce-gid-wrong",
        "mig-with-gdr",
        "xid-79-fell-off-bus",
        "fabric-manager-down-version",
        "memlock-login",
        "nccl-ib-hca-prefix",
        "perftest-without-dmabuf",
    }
)


def usual(values: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """All values as pytest parameters; those that are not chosen are in the slow tier."""
    return [
        value if value in chosen else pytest.param(value, marks=pytest.mark.slow, id=str(value))
        for value in values
    ]


# `make test-every-case` sets it.
_WITH_EVERY_CASE = bool(os.environ.get("EVERY_CASE"))


def share(cases: Iterable[T], turn: int, parts: int) -> list[T]:
    """One of so many parts of the cases, or all with EVERY_CASE: products of two long lists take an hour.

    The first turn has the first case of each row of so many, the next turn the second.
    """
    return list(cases) if _WITH_EVERY_CASE else list(islice(cases, turn % parts, None, parts))


def number_of(fault: str) -> int:
    """The place of a fault in the catalog, by which its turn comes."""
    return list(FAULTS).index(fault)


def nodes_to_try(fault: str) -> tuple[str, ...]:
    """The nodes on which a slow test tries a fault: its own, and one or two of the others.

    The next fault is tried on the next ones, so that each node has faults of every area. A node may lack what
    the fault needs.
    """
    own = FAULTS[fault].on
    others = (name for name in SIMULATED_NAMES if name not in (own, *FACTS_ALONE))
    return (own, *share(others, turn=number_of(fault), parts=12))


def names_node(value: object, nodes: Collection[str]) -> bool:
    """Whether a parameter, alone or in a tuple, names one of these nodes."""
    if isinstance(value, tuple):
        return any(names_node(item, nodes) for item in value)
    return isinstance(value, str) and value in nodes


def is_left_out(path: str, values: Iterable[object]) -> bool:
    """Whether a test in this file has a node of FACTS_ALONE among its parameters, and is beyond facts."""
    is_beyond = any(part in path for part in _BEYOND_FACTS)
    return is_beyond and not _WITH_EVERY_CASE and any(names_node(value, FACTS_ALONE) for value in values)
