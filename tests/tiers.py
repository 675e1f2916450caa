"""The two tiers: `make test` runs the usual cases of a long list, `make test-slow` the rest."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

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
