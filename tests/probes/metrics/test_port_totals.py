"""Ratios of two readings of a port's counters."""

from collections.abc import Mapping

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import probe_node
from probes.metrics.metrics import WAIT, PortTotals, read_port_totals, wait_ratio
from probes.simulation.host import SimulatedHost
from probes.snapshot.rates import PortCounters


def totals(ticks: Maybe[int] | None, sent: Maybe[int] = 0) -> PortTotals:
    counters: Mapping[str, Maybe[int]] = {} if ticks is None else {WAIT: ticks}
    return PortTotals("mlx5_0", 1, PortCounters(0.0, sent, 0), counters, {})


def test_the_ratio_is_of_ticks_and_words() -> None:
    assert wait_ratio(totals(100, 4000), totals(400, 4400)) == 0.75
    assert wait_ratio(totals(100, 4000), totals(100, 4000)) == 0.0  # an idle port waits for nothing
    assert wait_ratio(totals(0, 0), totals(5, 0)) == 1.0


def test_a_counter_that_was_reset_or_is_full_makes_no_ratio() -> None:
    assert isinstance(wait_ratio(totals(500, 0), totals(1, 8)), Unknown)
    assert isinstance(wait_ratio(totals(1, 800), totals(5, 8)), Unknown)
    assert isinstance(wait_ratio(totals(2**32 - 1, 0), totals(2**32 - 1, 8)), Unknown)
    assert wait_ratio(totals(2**32 - 100, 0), totals(100, 800)) == 0.5  # wrapped


def test_without_the_counter_there_is_no_value_and_after_one_reading_an_unknown_one() -> None:
    absent = wait_ratio(totals(None), totals(None))
    assert isinstance(absent, Unknown)
    assert absent.reason is Reason.NOT_THERE
    first = wait_ratio(None, totals(5))
    assert isinstance(first, Unknown)
    assert first.reason is not Reason.NOT_THERE


class Refusing(SimulatedHost):
    """A node whose NICs refuse their counters."""

    asked = 0

    def read_bytes(self, path: str, limit: int = 1 << 20) -> Maybe[bytes]:
        if "/counters/" not in path and "/hw_counters/" not in path:
            return super().read_bytes(path, limit)
        self.asked += "/port_xmit_wait" in path or "/hw_counters/" in path
        return Unknown(Reason.IO_ERROR, path, "Invalid argument")


def test_a_nic_that_refuses_a_counter_is_asked_for_no_other() -> None:
    host = Refusing("bare-roce", clock=lambda: 1000.0)
    wanted = (WAIT, "np_cnp_sent", "out_of_buffer")
    read = read_port_totals(host, probe_node(SimulatedHost("bare-roce")), wanted)
    assert isinstance(read, tuple)
    assert host.asked == len(read)
    assert all(isinstance(value, Unknown) for port in read for value in port.counters.values())
