"""The answer of rdma_topo, and on which nodes it runs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciFacts
from probes.facts.pci.rdma_topo import RdmaTopoFacts, parse, probe
from probes.simulation.host import SimulatedHost

GOOD = "OK\tAll ConnectX DMA functions have correct PCI topology\nOK\tACS for nvgpu is right\n"


def reason(answer: object) -> Reason:
    assert isinstance(answer, Unknown)
    return answer.reason


def test_right_and_failed_lines() -> None:
    assert parse(GOOD) == RdmaTopoFacts(
        ("All ConnectX DMA functions have correct PCI topology", "ACS for nvgpu is right"), ()
    )
    bad = parse(GOOD + "FAIL\tACS for grace_rp 0008:00:00.0 has incorrect values 0011101 != xx111x0\n")
    assert isinstance(bad, RdmaTopoFacts)
    assert bad.failed[0].startswith("ACS for grace_rp")


def test_a_machine_that_it_does_not_know_is_not_there() -> None:
    assert reason(parse("E: No supported topology detected\n")) is Reason.NOT_THERE


def test_without_root_it_says_so() -> None:
    answer = parse("E: Cannot read sysfs path: /sys/bus/pci/devices/0000:00:00.0/vpd. Are you root?\n")
    assert reason(answer) is Reason.NEEDS_ROOT


def test_an_answer_that_is_none_is_malformed() -> None:
    assert reason(parse("")) is Reason.MALFORMED


@given(st.text())
def test_no_output_stops_the_parser(text: str) -> None:
    parse(text)


def test_it_is_asked_only_where_it_can_judge() -> None:
    host = SimulatedHost("gb200")
    host.tree.commands["rdma_topo"] = lambda argv, seconds: GOOD
    facts = pci.probe(host)
    assert isinstance(facts, PciFacts)
    assert reason(probe(host, facts)) is Reason.NOT_THERE
    bdf, function = next(iter(facts.functions.items()))
    dma = replace(function, vendor_id=0x15B3, device_id=0x2100)
    assert isinstance(probe(host, PciFacts({**facts.functions, bdf: dma}, {})), RdmaTopoFacts)
