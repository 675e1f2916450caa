"""What a user without root cannot read is unknown: it never becomes a finding that root does not see."""

from __future__ import annotations

import re

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.judgment import judge
from probes.host.protocol import READ_LIMIT_BYTES, FileRange
from probes.live.job_examination import examine_with_jobs
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from tests.support.tiers import usual

_OF_OTHERS = re.compile(r"/proc/\d+/(?:environ|maps|fd|fdinfo|root|cwd|limits|stack)(?:/.*)?")


class WithoutRoot(SimulatedHost):
    """A node as a user sees it who is not the owner of its jobs; of PCI configuration, 64 bytes."""

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        if (denied := _denied(path)) is not None:
            return denied
        content = super().read_bytes(path, limit)
        return content if isinstance(content, Unknown) or not path.endswith("/config") else content[:64]

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        denied = _denied(path)
        return super().read_range(path, offset, limit) if denied is None else denied

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        denied = _denied(path)
        return super().names(path) if denied is None else denied

    def link(self, path: str) -> Maybe[str]:
        denied = _denied(path)
        return super().link(path) if denied is None else denied


def _denied(path: str) -> Unknown | None:
    return Unknown(Reason.NEEDS_ROOT, path) if _OF_OTHERS.fullmatch(path) else None


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(simulated_names(), {"bare-roce", "oci-h100", "gcp-a4", "hgx-h100"}))
def test_a_user_without_root_sees_no_finding_that_root_does_not_see(name: str) -> None:
    seen_by_root = {finding.id for finding in judge(examine_with_jobs(SimulatedHost(name))).found}
    seen = {finding.id for finding in judge(examine_with_jobs(WithoutRoot(name))).found}
    assert seen <= seen_by_root
