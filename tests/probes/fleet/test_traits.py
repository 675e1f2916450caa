from pathlib import Path

import pytest

from probes.base.unknown import Unknown
from probes.fleet.traits import FACTS, MOST_CHARACTERS, options_of, traits_of
from probes.host.machine.local import LocalHost
from probes.snapshot.examination import examine
from tests.support.fleet_nodes import simulated
from tests.support.tiers import USUAL_NODES


@pytest.mark.parametrize("label", USUAL_NODES)
def test_every_trait_is_a_known_fact_with_bounded_text(label: str) -> None:
    traits = simulated(label).traits
    known = {fact.id for fact in FACTS}
    assert {found.fact for found in traits} <= known
    assert len({(found.fact, found.slot) for found in traits}) == len(traits)
    for found in traits:
        assert len(found.slot) <= MOST_CHARACTERS
        assert isinstance(found.value, (str, float, Unknown))


def test_what_must_differ_is_no_trait() -> None:
    texts = " ".join(f"{found.value} {found.slot}" for found in simulated().traits)
    for own in ("51a0:1a7e", "GPU-51a01a7e", "hgx-h100", "0000:1a:00.0", "/dev/md0"):
        assert own not in texts


def test_a_kernel_option_is_one_trait_and_those_of_this_node_are_left_out() -> None:
    cmdline = (
        "BOOT_IMAGE=/vmlinuz-6.8 root=UUID=12-34 ro iommu=pt console=tty0 console=ttyS0 ip=10.0.0.7 "
        "rd.luks.uuid=luks-1 join_token=abc quiet -- single"
    )
    assert options_of(cmdline) == {"ro": "set", "iommu": "pt", "console": "tty0, ttyS0", "quiet": "set"}


def test_a_device_is_known_by_its_place_without_bus_numbers() -> None:
    slots = [found.slot for found in simulated().traits if found.fact == "nic"]
    assert slots[0] == "pci0000:15/01.0/00.0/02.0/00.0"


def test_an_empty_tree_has_unknown_traits_and_no_crash(tmp_path: Path) -> None:
    traits = traits_of(examine(LocalHost(str(tmp_path))))
    assert [found for found in traits if isinstance(found.value, Unknown)]


def test_other_partition_keys_are_a_difference() -> None:
    def keys(label: str) -> dict[str, object]:
        return {
            found.device: found.value for found in simulated(label).traits if found.fact == "partition-keys"
        }

    usual, other = keys("hgx-h100"), keys("hgx-h100+pkey-index0-limited")
    assert set(usual.values()) == {"0: 0xffff full"}
    assert "mlx5_4" not in usual  # RoCE
    assert {device: value for device, value in other.items() if value != usual[device]} == {
        "mlx5_2": "0: 0x7fff limited, 1: 0x8001 full"
    }
