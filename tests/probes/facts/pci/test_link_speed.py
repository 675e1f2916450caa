"""The bandwidth of a PCIe link, and its description."""

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.pci.functions import PciLink, capacity, carried, describe, generation, link_gbps

UNREAD = Unknown(Reason.NOT_THERE)
GEN5 = PciLink(32.0, 16, 32.0, 16)


@pytest.mark.parametrize(
    ("speed", "number", "gbps"),
    [
        (2.5, 1, 2.5 * 16 * 8 / 10),
        (5.0, 2, 5 * 16 * 8 / 10),
        (8.0, 3, 8 * 16 * 128 / 130),
        (16.0, 4, 16 * 16 * 128 / 130),
        (32.0, 5, 32 * 16 * 128 / 130),
        (64.0, 6, 64 * 16 * 236 / 256),
    ],
)
def test_every_generation_less_its_encoding(speed: float, number: int, gbps: float) -> None:
    assert generation(speed) == number
    assert link_gbps(speed, 16) == pytest.approx(gbps)


def test_a_link_is_as_good_as_its_worse_end() -> None:
    slot = PciLink(16.0, 8, 16.0, 8)
    assert capacity(GEN5, slot) == pytest.approx(link_gbps(16.0, 8))
    assert capacity(slot, GEN5) == capacity(GEN5, slot)
    assert describe(PciLink(16.0, 8, 32.0, 16), slot) == "Gen4 x8"


def test_a_link_below_its_best_says_both() -> None:
    assert describe(PciLink(8.0, 8, 32.0, 16), GEN5) == "Gen5 x16, now Gen3 x8"
    assert describe(PciLink(2.5, 16, 32.0, 16), GEN5) == "Gen5 x16, now Gen1 x16"
    assert describe(GEN5, GEN5) == "Gen5 x16"


def test_what_only_one_end_says_counts() -> None:
    silent = PciLink(UNREAD, UNREAD, UNREAD, UNREAD)
    assert capacity(silent, GEN5) == capacity(GEN5, None) == pytest.approx(link_gbps(32.0, 16))
    slow = PciLink(8.0, 16, 32.0, 16)
    assert describe(silent, slow) == describe(slow, silent) == "Gen5 x16, now Gen3 x16"


def test_a_link_that_says_nothing_is_not_taken_for_one_of_no_capacity() -> None:
    silent = PciLink(UNREAD, UNREAD, UNREAD, UNREAD)
    assert isinstance(capacity(silent, silent), Unknown)
    assert describe(silent, silent) == "link ?"
    assert describe(PciLink(16.0, 4, UNREAD, UNREAD), None) == "now Gen4 x4"


def test_what_a_link_carries_is_what_it_is_now_but_for_a_gpu_that_idles() -> None:
    narrow, slow = PciLink(32.0, 8, 32.0, 16), PciLink(16.0, 16, 32.0, 16)
    for idles in (False, True):
        assert carried(narrow, GEN5, idles) == pytest.approx(link_gbps(32.0, 8))
    assert carried(slow, GEN5, idles=False) == pytest.approx(link_gbps(16.0, 16))
    assert carried(slow, GEN5, idles=True) == pytest.approx(link_gbps(32.0, 16))
    silent = PciLink(UNREAD, UNREAD, 32.0, 16)
    assert carried(silent, None, idles=False) == pytest.approx(link_gbps(32.0, 16))
    assert carried(silent, narrow, idles=False) == pytest.approx(link_gbps(32.0, 8))
