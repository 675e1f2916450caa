"""The traces of driver containers on a node."""

from pathlib import Path

import pytest

from probes.facts.system.kubernetes import probe_driver_containers
from probes.host.machine.local import LocalHost


def test_a_node_without_containers(tmp_path: Path) -> None:
    facts = probe_driver_containers(LocalHost(str(tmp_path)))
    assert (facts.driver, facts.mofed, facts.mofed_ready) == (False, False, False)


def test_an_empty_directory_is_no_driver_container(tmp_path: Path) -> None:
    """The operator also creates it if the host has its own driver."""
    (tmp_path / "run/nvidia/driver").mkdir(parents=True)
    assert probe_driver_containers(LocalHost(str(tmp_path))).driver is False


def test_containers_and_modules(tmp_path: Path) -> None:
    (tmp_path / "run/nvidia/driver/lib/modules/6.8.0").mkdir(parents=True)
    (tmp_path / "run/mellanox/drivers").mkdir(parents=True)
    (tmp_path / "run/mellanox/drivers/.driver-ready").touch()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text("rpcrdma 1 0 - Live 0x0\nxrpcrdma_other 1 0 - Live 0x0\n")
    facts = probe_driver_containers(LocalHost(str(tmp_path)))
    assert facts.driver is True
    assert facts.releases == ("6.8.0",)
    assert (facts.mofed, facts.mofed_ready) == (True, True)
    assert facts.storage_modules == ("rpcrdma",)


@pytest.mark.parametrize("path", ["kubepods.slice", "kubepods", "systemd/kubepods", "memory/kubepods.slice"])
def test_pods_show_a_kubelet(tmp_path: Path, path: str) -> None:
    assert probe_driver_containers(LocalHost(str(tmp_path))).kubelet is False
    (tmp_path / "sys/fs/cgroup" / path).mkdir(parents=True)
    assert probe_driver_containers(LocalHost(str(tmp_path))).kubelet is True
