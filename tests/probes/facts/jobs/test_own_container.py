"""What /proc says of the container that gdrtop runs in."""

from __future__ import annotations

import math

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.own_container import OwnContainer, parse_shm, plugin_devices
from probes.facts.jobs.process_files import parse_environment
from tests.support.doctor import examination_of

_TMPFS = "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime"


def container_of(name: str) -> OwnContainer:
    found: Maybe[OwnContainer] = examination_of(name).own_container
    assert isinstance(found, OwnContainer)
    return found


@pytest.mark.parametrize(
    ("mounts", "size"),
    [
        (f"{_TMPFS},size=65536k 0 0", 64 << 20),
        (f"{_TMPFS},size=65536k 0 0\ntmpfs /dev/shm tmpfs rw,size=16g 0 0", 16 << 30),  # the last one counts
        (f"{_TMPFS} 0 0", math.inf),
        (f"{_TMPFS},size=x 0 0\n\n/dev/shm\n", math.inf),
    ],
)
def test_the_size_of_shared_memory(mounts: str, size: float) -> None:
    assert parse_shm(mounts) == size


def test_a_container_without_shared_memory_of_its_own() -> None:
    found = parse_shm("overlay / overlay rw 0 0")
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def test_devices_of_any_resource_name_are_those_of_the_plugin() -> None:
    environment = parse_environment(
        b"PCIDEVICE_EXAMPLE_ORG_FAST_NET=0000:1b:00.2,0000:1b:00.3\0"
        b'PCIDEVICE_EXAMPLE_ORG_FAST_NET_INFO={"0000:1b:00.2":{}}\0PCIDEVICE_X=\0PASSWORD=0000:1b:00.0\0'
    )
    assert plugin_devices(environment) == {"PCIDEVICE_EXAMPLE_ORG_FAST_NET": ("0000:1b:00.2", "0000:1b:00.3")}
    assert "PASSWORD" not in environment


def test_a_pod_without_counters_shares_the_devices_of_the_host() -> None:
    found = container_of("pcie-l40s+in-pod")
    assert (found.ipc_lock, found.has_counters, found.namespace_mode) == (True, False, "shared")
    assert container_of("pcie-l40s+container-shm-small").ipc_lock is False


def test_slingshot_has_no_counters_that_a_namespace_could_hide() -> None:
    assert isinstance(container_of("slingshot+in-pod").has_counters, Unknown)


def test_a_node_is_no_container() -> None:
    found = examination_of("pcie-l40s").own_container
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE
