"""The Setup screen, played by keys: from what a node has to a measured path that survives a reboot."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe
from probes.setup.steps.guide import Guide, read_guide
from tests.support.action_screens import on, seen
from tests.support.pilot import until
from tests.support.setup_screens import (
    QuickNode,
    Site,
    begin,
    next_title,
    row,
    run_plan,
    select,
    site_of,
    summary,
)
from tests.support.tiers import GDR_NODES, usual
from tui.screens.bandwidth_setup import BandwidthSetupScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.help import HelpScreen
from tui.screens.setup import SetupScreen

REBOOT, REPORT = "Reboot and check again", "Write the report"
OTHERS = "Resolve the other findings"
MOST_STEPS = 30


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr("tui.bandwidth.session._LOCK", str(tmp_path / "lock"))
    monkeypatch.chdir(tmp_path)


async def play(pilot: Pilot[None], stop_at: str = REBOOT) -> list[str]:
    """Run each step that the summary names as next, and skip what stays open; return what was run."""
    played: list[str] = []
    for _ in range(MOST_STEPS):
        title = next_title(pilot)
        if title in ("", stop_at):
            return played
        assert title in seen(pilot, "step").partition("\n")[0], "the next step is not selected"
        # The other findings are how a machine is built: no command changes that.
        if title in played or title == OTHERS or "Run: gdrtop env" in seen(pilot, "step"):
            await skip(pilot, title)
            continue
        played.append(title)
        await begin(pilot)
    raise AssertionError(f"no end after {played}")


async def skip(pilot: Pilot[None], title: str) -> None:
    """Leave a step out, as an admin does who can do nothing about it."""
    await select(pilot, title)
    await pilot.press("S")
    await until(pilot, lambda: "skipped by" in row(pilot, title))
    await pilot.pause()


async def play_to_the_end(site: Site) -> list[str]:
    """Set the node up, reboot it, go on as another admin would, and write the report."""
    async with site.opened() as pilot:
        played = await play(pilot)
        assert next_title(pilot) == REBOOT, seen(pilot, "guide")
        if not site.log.record().boots:
            assert "First press Enter here" in " ".join(seen(pilot, "step").split())
        await pilot.press("enter")
        await on(pilot, ConfirmScreen)
        await pilot.press("escape")
    site.host.reboot()
    async with site.opened() as pilot:
        assert row(pilot, REBOOT)[0] == ("?" if site.host.origin.label == "cloud-vm" else "✓")
        assert next_title(pilot) == REPORT
        for line in seen(pilot, "guide").splitlines():
            if line.startswith("?"):
                await skip(pilot, line[2:].partition("  ")[0].strip())
        await select(pilot, REPORT)
        await pilot.press("enter")
        await until(pilot, lambda: "the node is set up" in summary(pilot))
        assert "written to" in row(pilot, REPORT)
        assert "<html" in next(Path.cwd().glob("gdrtop-report-*.html")).read_text("utf-8")
    return played


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(GDR_NODES, {"pcie-l40s"}))
async def test_a_node_is_set_up_by_keys_to_the_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    played = await play_to_the_end(site_of(monkeypatch, name))
    # Where no tool measures the staged path, its step is skipped; perftest cannot measure Slingshot.
    what = ("a NIC with host memory", "one GPU and its NIC", "every GPU with its NIC")
    expected = [] if name == "slingshot" else [f"Measure {name}" for name in what]
    assert [title for title in played if title.startswith("Measure") and "staged" not in title] == expected


@pytest.mark.slow
async def test_a_new_node_is_set_up_by_keys_from_nothing_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(monkeypatch, "pcie-l40s+new-node-debian")
    async with site.opened() as pilot:
        played = await play(pilot, stop_at=REPORT)
        assert played[:3] == ["Install the NVIDIA driver", "Load the modules", "Install the benchmark tools"]
        assert ("systemctl", "reboot") in site.host.ran
        assert "✓" in row(pilot, REBOOT)
        await select(pilot, REPORT)
        await pilot.press("enter")
        await until(pilot, lambda: "the node is set up" in summary(pilot))


# Nodes with something wrong, and what the admin sees


@pytest.mark.slow
async def test_showing_the_steps_saves_no_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(monkeypatch, "hgx-h100")
    async with site.opened() as pilot:
        assert not site.log.record().boots
        await skip(pilot, "Measure a NIC with host memory")
        assert len(site.log.record().boots) == 1


@pytest.mark.slow
async def test_steps_that_are_being_read_again_are_not_shown_as_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading takes a slow node seconds, in which the rows are those from before an action."""
    site = site_of(monkeypatch, "hgx-h100+acs-on")
    goes_on = threading.Event()
    goes_on.set()

    def read(*facts: Any) -> Guide:
        goes_on.wait(60)
        return read_guide(*facts)

    monkeypatch.setattr("tui.controllers.setup.read_guide", read)
    async with site.opened() as pilot:
        assert "· checked" in summary(pilot)
        goes_on.clear()
        await pilot.press("enter")
        await on(pilot, ConfirmScreen)
        await run_plan(pilot)
        await on(pilot, SetupScreen)
        await until(pilot, lambda: "checking …" in summary(pilot))
        assert next_title(pilot) == "Disable ACS redirects"
        goes_on.set()
        await until(pilot, lambda: next_title(pilot) == "Measure a NIC with host memory")
        await until(pilot, lambda: "· checked" in summary(pilot))


@pytest.mark.slow
async def test_what_comes_back_at_a_reboot_is_a_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACS is cleared by a key; a reboot without update-grub brings it back, one after it does not."""
    site = site_of(monkeypatch, "hgx-h100+acs-on")
    async with site.opened() as pilot:
        assert next_title(pilot) == "Disable ACS redirects"
        assert "· Reboot and check again" in row(pilot, REBOOT)
        await begin(pilot)
        assert "✓" in row(pilot, "Disable ACS redirects")
        assert next_title(pilot) == "Measure a NIC with host memory"
        assert next_title(pilot) in seen(pilot, "step").partition("\n")[0]
    file = "/etc/default/grub.d/gdrtop-acs.cfg"
    setting = site.host.tree.text(file)
    assert "pci=disable_acs_redir=" in setting
    site.host.tree.remove(file)  # as long as update-grub has not run, the boot loader does not know it
    site.host.reboot()
    async with site.opened() as pilot:
        assert next_title(pilot) == "Disable ACS redirects"
        assert "waiting for: Disable ACS" in row(pilot, REBOOT)
    site.host.tree.add(file, setting)
    site.host.reboot()
    async with site.opened() as pilot:
        assert "✓" in row(pilot, REBOOT)


@pytest.mark.slow
async def test_loading_by_hand_after_a_failed_reboot_does_not_count_as_lasting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = site_of(monkeypatch, "dgx-a100+peermem-not-persistent,peermem-not-loaded")
    async with site.opened() as pilot:
        assert next_title(pilot) == "Load the modules"
        await begin(pilot)
        assert next_title(pilot) == "Load everything at boot"
    site.host.reboot()
    async with site.opened() as pilot:
        assert next_title(pilot) == "Load the modules"
        await begin(pilot)
        await begin(pilot)
        assert "✓" in row(pilot, "Load everything at boot")
        assert "not rebooted since the last step" in row(pilot, REBOOT)
    site.host.reboot()
    async with site.opened() as pilot:
        assert "✓" in row(pilot, REBOOT)


@pytest.mark.slow
async def test_the_rival_is_unloaded_and_its_package_is_left_to_the_admin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = site_of(monkeypatch, "dgx-a100+nv-peer-mem-conflict")
    async with site.opened() as pilot:
        assert next_title(pilot) == "Remove nv_peer_mem"
        assert "Remove its package: nvidia-peer-memory" in " ".join(seen(pilot, "step").split())
        await begin(pilot)
        assert ("rmmod", "nv_peer_mem") in site.host.ran
        assert "✓" in row(pilot, "Load the modules")


WRONG_STARTS = {
    # name: (step, what its row or its detail says)
    "dgx-a100+peermem-built-without-symbols": ("Build modules", "dkms build nvidia/535.309.01"),
    "dgx-a100+secure-boot-key-rejected": ("Let the kernel trust", "a BMC or a keyboard, not SSH"),
    "hgx-h100+dmabuf-needs-open-module": ("Meet the requirements", "not needed for nvidia-peermem"),
    "pcie-l40s+iommu-translated": ("Set the IOMMU", "grubby --update-kernel=ALL --args=iommu=pt"),
    "hgx-h100+iommu-translated": ("Set the IOMMU", "update-grub"),
    "hgx-h100+k8s-waiting-for-mofed": ("Set up the Kubernetes", "nvidia-peermem-ctr: waiting for MOFED"),
    "pcie-l40s+geforce-no-gdr": ("Check GPUs and NICs", "GeForce GPUs do not support GPUDirect RDMA"),
    "hgx-h100+memlock-login": ("Allow jobs to lock memory", "limits.d"),
    "pcie-l40s+initramfs-stale": ("Load everything at boot", "dracut --regenerate-all --force"),
    "dgx-a100+peermem-not-on-disk-old-driver": ("Install the NVIDIA driver", "needs driver 470"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(WRONG_STARTS, {"hgx-h100+iommu-translated"}))
async def test_a_wrong_start_is_named_with_the_command_of_this_node(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    title, words = WRONG_STARTS[name]
    site = site_of(monkeypatch, name)
    async with site.opened() as pilot:
        await select(pilot, title)
        assert words in " ".join(seen(pilot, "step").split())
        await pilot.press("enter")  # nothing runs before it was confirmed
        await pilot.pause()
        assert site.host.ran == []


class Container(QuickNode):
    """The inside of a container."""

    def environment(self, name: str) -> Maybe[str]:
        return "docker" if name == "container" else super().environment(name)


@pytest.mark.slow
async def test_in_a_container_setup_sends_to_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(monkeypatch, "hgx-h100+acs-on", Container)
    async with site.opened() as pilot:
        assert "this is a container" in seen(pilot, "guide")
        await select(pilot, "Disable ACS redirects")
        assert "run gdrtop setup on the node itself" in " ".join(seen(pilot, "step").split())
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(pilot.app.screen, ConfirmScreen)


@pytest.mark.slow
async def test_read_only_says_why_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(monkeypatch, "hgx-h100+acs-on")
    async with site.opened(read_only=True) as pilot:
        assert "gdrtop cannot run commands here: gdrtop was started with --read-only." in summary(pilot)
        await pilot.press("enter")
        await on(pilot, ConfirmScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert site.host.ran == []


@pytest.mark.slow
async def test_without_root_and_sudo_setup_says_so_before_anything_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tui.controllers.setup.why_no_root", lambda: "needs root, and sudo is not installed")
    site = site_of(monkeypatch, "hgx-h100+acs-on")
    site.host.origin = Origin(Source.LIVE, "")
    async with site.opened() as pilot:
        assert "cannot run commands here: needs root, and sudo is not installed." in summary(pilot)


# Choices


async def test_the_other_path_is_chosen_and_who_chose_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.runtime.lock.user_name", lambda: "alice")
    site = site_of(monkeypatch, "hgx-h100")
    async with site.opened() as pilot:
        assert "nvidia_peermem" not in summary(pilot)  # the job that runs uses it
        await pilot.press("P")
        await until(pilot, lambda: "chosen by alice on" in summary(pilot))
        assert "not the recommended DMA-BUF" in summary(pilot)
        await pilot.press("P")
        await until(pilot, lambda: "path DMA-BUF ·" in summary(pilot))


@pytest.mark.slow
async def test_a_measured_step_can_be_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(monkeypatch, "hgx-h100")
    async with site.opened() as pilot:
        await begin(pilot)
        await select(pilot, "Measure a NIC")
        assert "✓" in row(pilot, "Measure a NIC")
        await pilot.press("enter")
        await on(pilot, BandwidthSetupScreen)


@pytest.mark.slow
async def test_a_plan_is_rehearsed_by_a_key_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(monkeypatch, "hgx-h100+acs-on")
    async with site.opened() as pilot:
        await pilot.press("enter")
        await on(pilot, ConfirmScreen)
        await pilot.press("tab", "T")  # out of the field of the host name
        await until(pilot, lambda: "EXPECTED AFTERWARDS" in seen(pilot, "plan"))
        assert "fixed ✓ acs-redirect-enabled" in " ".join(seen(pilot, "plan").split())
        assert site.host.ran == []


@pytest.mark.slow
async def test_the_help_opens_at_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site_of(monkeypatch, "hgx-h100").opened() as pilot:
        await pilot.press("question_mark")
        await on(pilot, HelpScreen)
        assert "(gdrtop help setup)" in summary(pilot)
