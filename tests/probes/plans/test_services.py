"""Restarting openibd, Fabric Manager and nvidia-persistenced; GPU persistence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.system.services import ServiceState
from probes.plans.services import lift_memlock
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, with_gpus, with_module, with_nvml, with_service, without
from tests.support.doctor import examination_of, findings_on
from tests.support.plans import commands, plan, undone, why_not

HGX, DGX = "hgx-h100", "dgx-a100"
NOT_THERE = Unknown(Reason.NOT_THERE, "somewhere")


def with_openibd(examination: Examination) -> Examination:
    return with_service(
        examination, "openibd", path="/etc/init.d/openibd", enabled=True, state=ServiceState.ACTIVE
    )


# openibd


def test_peermem_is_unloaded_before_openibd_and_loaded_again() -> None:
    fix = plan("restart-openibd", with_openibd(examination_of(HGX)))
    assert commands(fix) == ["rmmod nvidia_peermem", "systemctl restart openibd", "modprobe nvidia_peermem"]
    assert fix.disturbs.startswith("every program that uses RDMA")
    assert "refcnt" in fix.disturbs


def test_nv_peer_mem_is_unloaded_before_openibd_too() -> None:
    fix = plan("restart-openibd", examination_of(f"{DGX}+nv-peer-mem-conflict"))
    assert commands(fix) == ["rmmod nv_peer_mem", "systemctl restart openibd", "modprobe nv_peer_mem"]


def test_openibd_restarts_alone_if_nothing_uses_the_stack() -> None:
    fix = plan("restart-openibd", with_openibd(without(examination_of(HGX), "nvidia_peermem")))
    assert commands(fix) == ["systemctl restart openibd"]
    assert "refcnt" not in fix.disturbs


def test_storage_over_rdma_blocks_the_restart() -> None:
    node = with_module(
        with_openibd(examination_of(HGX)), "rdma_cm", used_by=("rpcrdma", "rdma_ucm", "ib_isert")
    )
    assert "while ib_isert, rpcrdma use the RDMA stack" in why_not("restart-openibd", node)


def test_a_peermem_that_cannot_load_again_blocks_the_restart() -> None:
    node = with_module(with_openibd(examination_of(HGX)), "nvidia_peermem", on_disk=NOT_THERE)
    assert "could not be loaded again: no .ko" in why_not("restart-openibd", node)


# Installed or not


def test_a_missing_service_is_not_restarted() -> None:
    assert why_not("restart-openibd", examination_of("pcie-l40s")) == "openibd is not installed"
    bare = with_service(examination_of(HGX), "nvidia-persistenced", path=NOT_THERE, state=NOT_THERE)
    assert why_not("restart-persistence-daemon", bare) == "nvidia-persistenced is not installed"
    from_container = with_service(examination_of(HGX), "nvidia-fabricmanager", path=NOT_THERE)
    assert "restart its container" in why_not("restart-fabric-manager", from_container)
    masked = with_service(examination_of(HGX), "nvidia-fabricmanager", masked=True)
    assert why_not("restart-fabric-manager", masked) == "nvidia-fabricmanager is masked"


def test_fabric_manager_needs_nvswitches() -> None:
    fix = plan("restart-fabric-manager", examination_of(HGX))
    assert commands(fix) == ["systemctl restart nvidia-fabricmanager"]
    assert fix.disturbs.startswith("every CUDA job")
    reason = "this node has no NVSwitch to configure"
    assert why_not("restart-fabric-manager", examination_of("pcie-l40s")) == reason


def test_the_persistence_daemon() -> None:
    fix = plan("restart-persistence-daemon", examination_of(HGX))
    assert commands(fix) == ["systemctl restart nvidia-persistenced"]
    assert fix.disturbs == ""


# Persistence


def persistence_off(examination: Examination) -> Examination:
    return with_nvml(examination, lambda nvml: replace(nvml, persistence=False))


def test_an_installed_persistence_daemon_is_started() -> None:
    stopped = with_service(
        persistence_off(examination_of(HGX)), "nvidia-persistenced", state=ServiceState.INACTIVE
    )
    fix = plan("persistence-on", stopped)
    assert commands(fix) == ["systemctl start nvidia-persistenced"]
    assert undone(fix) == ["systemctl stop nvidia-persistenced"]
    fix = plan("persistence-on", with_service(stopped, "nvidia-persistenced", enabled=False))
    assert commands(fix) == ["systemctl enable --now nvidia-persistenced"]
    assert undone(fix) == ["systemctl disable --now nvidia-persistenced"]


def test_the_mode_is_set_without_a_daemon_or_through_it() -> None:
    node = persistence_off(examination_of(HGX))
    fix = plan("persistence-on", node)
    assert commands(fix) == ["nvidia-smi -pm 1"]
    assert undone(fix) == ["nvidia-smi -pm 0"]
    assert "--no-persistence-mode" in fix.note
    bare = with_service(node, "nvidia-persistenced", path=NOT_THERE, state=NOT_THERE)
    assert "until the next reboot" in plan("persistence-on", bare).note


def test_the_undo_leaves_gpus_alone_that_were_on() -> None:
    def turned_off(gpu):  # type: ignore[no-untyped-def]
        return replace(gpu, nvml=replace(gpu.nvml, persistence=False))

    fix = plan("persistence-on", with_gpus(examination_of(HGX), turned_off, 0))
    assert commands(fix) == ["nvidia-smi -i 0000:18:00.0 -pm 1"]
    assert undone(fix) == ["nvidia-smi -i 0000:18:00.0 -pm 0"]


def test_nothing_to_do_and_unknown_state_are_reported() -> None:
    assert why_not("persistence-on", examination_of(HGX)) == "persistence mode is on for all 8 GPUs"
    told = why_not("persistence-on", examination_of("pcie-l40s+nvidia-not-loaded"))
    assert "the NVIDIA driver is not loaded" in told


@pytest.mark.slow
def test_the_doctor_proposes_the_same_plan() -> None:
    for fault in ("persistence-off", "persistence-off-daemon-runs"):
        node = f"{HGX}+{fault}"
        assert findings_on(node)[fault].fix == plan("persistence-on", examination_of(node))


def test_a_restart_of_docker_or_pbs_names_what_it_ends() -> None:
    plan = lift_memlock(["containerd.service", "docker.service", "slurmd.service", "pbs_mom.service"])
    told = commands(plan)
    assert "systemctl restart containerd.service slurmd.service" in told
    assert told[-2:] == ["systemctl restart docker.service", "systemctl restart pbs_mom.service"]
    assert "live-restore" in plan.disturbs
    assert "pbs_mom" in plan.disturbs
    assert lift_memlock(["slurmd.service", "containerd.service"]).disturbs == ""


def test_imex_is_enabled_only_if_nothing_else_starts_it() -> None:
    node = examination_of("gb200+imex-down")
    plan = said("imex-down", node).fix
    assert plan is not None
    assert any("enable" in command for command in commands(plan))
    assert "NCCL_MNNVL_ENABLE=0" in plan.steps[-1].why
    memlock = node.memlock
    assert not isinstance(memlock, Unknown)
    units = {**memlock.services, "kubelet.service": Unknown(Reason.NOT_THERE, "LimitMEMLOCK")}
    on_kubernetes = replace(node, memlock=replace(memlock, services=units))
    masked = with_service(node, "nvidia-imex", masked=True)
    for left_alone in (on_kubernetes, masked):
        assert said("imex-down", left_alone).fix is None
