"""A simulated node that reboots: its disk stays, what was only loaded or written to a register is gone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from probes.base.unknown import known
from probes.checks.registry import findings
from probes.host.protocol import Host
from probes.queries.finding import Status
from probes.simulation.commands.boot import start
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.examination import examine
from tests.support.tiers import share, usual

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def found(host: SimulatedHost) -> set[str]:
    return {finding.id for finding in findings(examine(host)) if finding.status is Status.FOUND}


def modules(host: SimulatedHost) -> set[str]:
    return {line.split()[0] for line in known(host.read("/proc/modules"), "").splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100"}))
def test_a_healthy_node_is_the_same_after_a_reboot_in_a_new_boot(name: str) -> None:
    host = SimulatedHost(name)
    before, boot, loaded = found(host), host.read(BOOT_ID), modules(host)
    host.reboot()
    assert found(host) == before
    assert modules(host) - {"rdma_ucm"} == loaded  # which openibd loads too
    assert host.read(BOOT_ID) != boot


@pytest.mark.slow
def test_a_module_loaded_by_hand_is_gone_and_one_of_modules_load_is_back() -> None:
    host = SimulatedHost("dgx-a100+peermem-not-persistent,peermem-not-loaded")
    host.perform(("modprobe", "nvidia_peermem"))
    assert "nvidia_peermem" in modules(host)
    host.reboot()
    assert "nvidia_peermem" not in modules(host)
    host.tree.add("/etc/modules-load.d/own.conf", "nvidia_peermem\n")
    host.reboot()
    assert "nvidia_peermem" in modules(host)


def test_module_options_are_those_of_modprobe_d() -> None:
    host = SimulatedHost("dgx-a100")
    path = "/sys/module/nvidia_peermem/parameters/peerdirect_support"
    host.tree.add("/etc/modprobe.d/own.conf", "options nvidia_peermem peerdirect_support=1\n")
    assert host.read(path) == "0"
    host.reboot()
    assert host.read(path) == "1"


@pytest.mark.slow
def test_registers_are_as_the_firmware_sets_them_unless_a_kernel_option_clears_them() -> None:
    host = SimulatedHost("hgx-h100+acs-on")
    fix = next(finding.fix for finding in findings(examine(host)) if finding.id == "acs-redirect-enabled")
    assert fix is not None
    ports = [step.argv[2] for step in fix.steps if step.argv[:1] == ("setpci",)]
    for step in fix.steps:
        if step.argv:
            host.perform(step.argv)
    assert "acs-redirect-enabled" not in found(host)
    host.reboot()
    assert "acs-redirect-enabled" in found(host)
    option = f'pci=disable_acs_redir=\\"{";".join(ports)}\\"'
    host.tree.add("/etc/default/grub.d/acs.cfg", f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {option}"\n')
    host.reboot()
    assert "acs-redirect-enabled" not in found(host)


@pytest.mark.parametrize("name", usual(["hgx-h100", "pcie-l40s"], {"hgx-h100"}))
def test_the_kernel_command_line_is_that_of_the_boot_loader(name: str) -> None:
    host = SimulatedHost(f"{name}+iommu-translated")
    entries = [path for path in host.tree.files if path.startswith("/boot/loader/entries/")]
    for path in entries or ["/etc/default/grub"]:
        host.tree.add(path, re.sub(r"(intel_iommu=)\w+", r"\1on iommu=pt", host.tree.text(path)))
    assert "iommu-translated" in found(host)
    host.reboot()
    assert "iommu=pt" in known(host.read("/proc/cmdline"), "")
    assert "iommu-translated" not in found(host)


@pytest.mark.slow
def test_an_enabled_service_starts_and_a_disabled_one_does_not() -> None:
    host = SimulatedHost("hgx-h100+nv-peer-mem-conflict-service")
    host.perform(("systemctl", "disable", "nv_peer_mem"))
    host.perform(("systemctl", "stop", "nvidia-fabricmanager"))
    host.reboot()
    assert "nv_peer_mem" not in modules(host)
    assert host.tree.units["nvidia-fabricmanager"] == "active"


@pytest.mark.slow
@pytest.mark.parametrize("fault", share(sorted(FAULTS), turn=0, parts=3))
def test_a_node_with_any_fault_starts_again(fault: str) -> None:
    host = SimulatedHost(f"{FAULTS[fault].on}+{fault}")
    host.reboot()
    assert examine(host).node.kernel_release


def test_other_threads_read_the_earlier_boot_until_the_new_one_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 5000.0
    host = SimulatedHost("dgx-a100", clock=lambda: now)
    now = 6000.0
    before, began = host.read(BOOT_ID), host.wall_clock()
    seen = []

    def watched_start(booting: Host, *parts: Any) -> None:
        start(booting, *parts)
        seen.append((host.read(BOOT_ID), host.wall_clock(), booting.read(BOOT_ID)))

    monkeypatch.setattr("probes.simulation.commands.boot.start", watched_start)
    host.reboot()
    assert seen == [(before, began, host.read(BOOT_ID))]
    assert host.read(BOOT_ID) != before
    assert host.wall_clock() == began
