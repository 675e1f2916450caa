"""When a node is probed again."""

import errno
from collections.abc import Mapping, Sequence

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.simulation.host import SimulatedHost
from probes.snapshot.watch import RETRY_SECONDS, Watch


class BusyAtFirst(SimulatedHost):
    """A node whose NICs answer too late the first time."""

    asked = 0

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        self.asked += 1
        late = Unknown(Reason.TIMED_OUT, "ibv_reg_dmabuf_mr")
        return dict.fromkeys(devices, late if self.asked == 1 else errno.EBADF)


def test_a_probe_that_timed_out_is_repeated_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("probes.snapshot.watch.time.monotonic", lambda: now)
    host = BusyAtFirst("hgx-h100")
    watch = Watch(host)
    assert watch.probe() is not None
    assert watch.probe() is None
    now += RETRY_SECONDS
    assert watch.probe() is not None
    assert host.asked == 2
    now += RETRY_SECONDS
    assert watch.probe() is None
