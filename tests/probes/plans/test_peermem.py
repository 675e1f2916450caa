"""Taking nvidia_peermem out, loading it anew, and retiring its predecessor."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.modules import ModuleState
from probes.facts.system.services import ServiceState
from probes.snapshot.examination import Examination
from tests.support.changed_facts import with_file, with_module, with_service, without
from tests.support.doctor import examination_of
from tests.support.plans import commands, offers_on, plan, undone, why_not

HGX, DGX = "hgx-h100", "dgx-a100"
PEERMEM = "nvidia_peermem"


def with_refcnt(examination: Examination, refcnt: Maybe[int]) -> Examination:
    reading = examination.reading
    return replace(examination, reading=replace(reading, peermem=replace(reading.peermem, refcnt=refcnt)))


# Unloading


def test_unloading_peermem_unloads_nothing_else() -> None:
    fix = plan("unload-peermem", examination_of(HGX))
    assert commands(fix) == ["rmmod nvidia_peermem"]
    assert undone(fix) == ["modprobe nvidia_peermem"]


def test_disturbed_jobs_are_reported_with_the_refcnt() -> None:
    assert "(refcnt 12)" in plan("unload-peermem", with_refcnt(examination_of(HGX), 12)).disturbs
    assert plan("unload-peermem", with_refcnt(examination_of(HGX), 0)).disturbs == ""


def test_the_plan_says_that_programs_will_copy_without_dmabuf() -> None:
    assert "DMA-BUF cannot be used" in plan("unload-peermem", examination_of(DGX)).note
    assert plan("unload-peermem", examination_of(HGX)).note == ""


def test_an_absent_or_permanent_module_is_not_unloaded() -> None:
    node = examination_of(HGX)
    assert why_not("unload-peermem", without(node, PEERMEM)) == "nvidia_peermem is not loaded"
    built_in = with_module(node, PEERMEM, state=ModuleState.BUILTIN)
    assert "built into the kernel" in why_not("unload-peermem", built_in)
    fixed = with_refcnt(node, Unknown(Reason.NOT_THERE, "refcnt"))
    assert why_not("unload-peermem", fixed) == "this kernel cannot unload modules (no refcnt)"
    hidden = with_refcnt(node, Unknown(Reason.TIMED_OUT, "refcnt"))
    assert "timed out" in why_not("unload-peermem", hidden)


def test_a_module_without_a_file_cannot_be_loaded_again() -> None:
    """As one that a container loaded."""
    node = with_module(examination_of(HGX), PEERMEM, on_disk=Unknown(Reason.NOT_THERE, "modules.dep"))
    fix = plan("unload-peermem", node)
    assert undone(fix) == [""]
    assert "It cannot be loaded again afterward: no .ko for kernel" in fix.note
    assert "could be unloaded but not loaded again: no .ko" in why_not("reload-peermem", node)


# Loading anew


def test_reloading_is_rmmod_then_modprobe() -> None:
    fix = plan("reload-peermem", examination_of(HGX))
    assert commands(fix) == ["rmmod nvidia_peermem", "modprobe nvidia_peermem"]
    assert "The loaded module is the one on disk" in fix.note


def test_reloading_shows_the_difference() -> None:
    node = with_file(examination_of(HGX), PEERMEM, srcversion="51A01A7E51A01A7E51A01A7E")
    note = plan("reload-peermem", node).note
    assert "The module on disk differs from the loaded one: srcversion" in note
    assert "51A01A7E51A01A7E51A01A7E" in note


def test_a_file_of_another_driver_is_not_loaded() -> None:
    told = offers_on(f"{HGX}+driver-half-updated")["reload-peermem"].why_not
    assert told.endswith("not loaded again: its file belongs to driver 595.71.05, but 570.211.01 is loaded")


# nv_peer_mem


def test_the_old_module_is_unloaded_before_its_service_stops() -> None:
    """The service's stop unloads the module itself, and is content where there is none."""
    node = with_service(
        examination_of(f"{DGX}+nv-peer-mem-conflict"),
        "nv_peer_mem",
        path="/etc/init.d/nv_peer_mem",
        enabled=True,
        state=ServiceState.ACTIVE,
    )
    fix = plan("replace-nv-peer-mem", node)
    assert commands(fix) == [
        "rmmod nv_peer_mem",
        "systemctl disable --now nv_peer_mem",
        "modprobe nvidia_peermem",
        "…",
    ]
    assert undone(fix)[:3] == ["modprobe nv_peer_mem", "systemctl enable nv_peer_mem", "rmmod nvidia_peermem"]
    for package in ("nvidia-peer-memory", "nvidia-peer-memory-dkms", "nvidia_peer_memory"):
        assert package in fix.steps[-1].why


def test_only_existing_parts_are_removed() -> None:
    absent = Unknown(Reason.NOT_THERE, "unit")
    alone, twice = (examination_of(f"{DGX}+nv-peer-mem-conflict{more}") for more in ("", "-twice"))
    by_hand = with_service(alone, "nv_peer_mem", path=absent, state=absent)
    assert commands(plan("replace-nv-peer-mem", by_hand)) == [
        "rmmod nv_peer_mem",
        "modprobe nvidia_peermem",
        "…",
    ]
    assert "modprobe nvidia_peermem" not in commands(plan("replace-nv-peer-mem", twice))
    assert commands(plan("replace-nv-peer-mem", examination_of(f"{HGX}+nv-peer-mem-conflict-service"))) == [
        "systemctl disable --now nv_peer_mem",
        "…",
    ]
    assert "no service loads it" in why_not("replace-nv-peer-mem", examination_of(HGX))


def test_the_old_module_stays_if_the_new_one_cannot_load() -> None:
    node = with_module(
        examination_of(f"{DGX}+nv-peer-mem-conflict"),
        PEERMEM,
        on_disk=Unknown(Reason.NOT_THERE, "modules.dep"),
    )
    assert "nvidia_peermem cannot be loaded instead: no .ko" in why_not("replace-nv-peer-mem", node)


def test_an_unknown_service_is_reported() -> None:
    node = replace(
        examination_of(f"{DGX}+nv-peer-mem-conflict"), services=Unknown(Reason.NOT_RECORDED, "/usr")
    )
    assert "cannot tell whether there is an nv_peer_mem service" in why_not("replace-nv-peer-mem", node)
