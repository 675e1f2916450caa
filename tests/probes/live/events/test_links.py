"""The PCIe link of a NIC: what is an event, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.live.model.sample import EventKind, LiveSample
from tests.support.event_runs import Following, texts
from tests.support.live_samples import a_port, a_sample

HIDDEN = Unknown(Reason.NOT_THERE, "current_link_speed")


def with_link(gtps: Maybe[float] = 32.0, width: Maybe[int] = 16, ports: int = 1) -> LiveSample:
    """Return a sample in which the card of mlx5_3 has this link."""
    linked = [a_port(3, port=number, pcie_gtps=gtps, pcie_width=width) for number in range(1, ports + 1)]
    return replace(a_sample(), ports=(a_port(0), *linked))


@pytest.mark.parametrize(
    ("now", "change"), [((16.0, 16), "Gen4 x16"), ((32.0, 8), "Gen5 x8"), ((7.0, 16), "7 GT/s x16")]
)
def test_a_slower_or_narrower_link_is_a_warning(now: tuple[float, int], change: str) -> None:
    node = Following()
    node.see(with_link(), 5)
    (event,) = node.see(with_link(*now), 5)
    assert (event.kind, event.severity) == (EventKind.LINK_RETRAINED, Severity.WARNING)
    assert event.subject == "mlx5_3"
    assert event.text == f"the PCIe link of mlx5_3 changed from Gen5 x16 to {change}"
    assert "AER" in event.explanation


def test_a_link_that_is_fast_again_is_a_note() -> None:
    node = Following()
    node.see(with_link(16.0), 5)
    (event,) = node.see(with_link(32.0), 5)
    assert event.severity is Severity.NOTE


def test_a_card_with_two_ports_is_reported_once() -> None:
    node = Following()
    node.see(with_link(ports=2), 5)
    assert len(texts(node.see(with_link(16.0, ports=2), 5))) == 1


@pytest.mark.parametrize(
    "between", [(16.0, 16), (HIDDEN, HIDDEN), (32.0, 0)], ids=["training", "hidden", "down"]
)
def test_a_link_that_trains_or_is_hidden_for_a_moment_is_no_event(
    between: tuple[Maybe[float], Maybe[int]],
) -> None:
    node = Following()
    node.see(with_link(), 5)
    node.see(with_link(*between), 1)
    assert node.see(with_link(), 5) == []


def test_a_link_that_was_slow_from_the_start_is_no_event() -> None:
    assert Following().see(with_link(2.5), 10) == []
