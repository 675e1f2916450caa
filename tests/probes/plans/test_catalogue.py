"""The catalogue of actions: the same on every node, each with a plan or a reason, none with a shell in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.plan import Step
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.plans import catalogue
from probes.plans.catalogue import ACTIONS, Action, offers
from probes.plans.common import is_reboot, only_reads
from probes.queries.finding import Status
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.node.model.names import SIMULATED_NAMES
from tests.support.doctor import examination_of, findings_on
from tests.support.plans import offers_on
from tests.support.tiers import USUAL_FAULTS, usual

NEEDS_ROOT = Unknown(Reason.NEEDS_ROOT, "somewhere")
IDS = [
    "load-modules",
    "load-peermem",
    "unload-peermem",
    "replace-nv-peer-mem",
    "reload-peermem",
    "persist-modules",
    "unpersist-modules",
    "acs-redirect-off",
    "mrrs",
    "persistence-on",
    "raise-ports",
    "restart-openibd",
    "restart-fabric-manager",
    "restart-persistence-daemon",
]
FAULTY = {fault.name: f"{fault.on}+{fault.name}" for fault in FAULTS.values()}
NODES = usual(
    [*SIMULATED_NAMES, *FAULTY.values()], {*SIMULATED_NAMES, *(FAULTY[name] for name in USUAL_FAULTS)}
)
SHELL = set("|&;<>$`\"'*?()[]{}!\\\n")


@pytest.mark.parametrize("node", SIMULATED_NAMES)
def test_every_node_has_the_same_actions_in_order_then_fixes(node: str) -> None:
    ids = list(offers_on(node))
    assert ids[: len(IDS)] == IDS
    assert ids[len(IDS) :] == [
        f"fix:{finding.id}" for finding in findings_on(node).values() if finding.fix is not None
    ]


@pytest.mark.slow
@pytest.mark.parametrize("node", NODES)
def test_every_action_has_a_plan_or_a_reason(node: str) -> None:
    for offer in offers_on(node).values():
        assert offer.title
        assert "\n" not in offer.title
        assert (offer.plan is None) == bool(offer.why_not)
        assert "\n" not in offer.why_not
        assert "internal error" not in offer.why_not


@pytest.mark.parametrize("node", NODES)
def test_steps_are_plain_commands_with_a_reason(node: str) -> None:
    for offer in offers_on(node).values():
        for step in offer.plan.steps if offer.plan else ():
            assert step.why.strip()
            assert step.why.count("\n") == (1 if step.to_copy else 0)
            for argv in (step.argv, step.undo):
                assert not argv or "/" not in argv[0]
                # apt-get takes a pattern: the version of a package has a suffix of its distribution.
                assert not SHELL & set("".join(argv).replace("*", "" if argv[:1] == ("apt-get",) else "*"))
                assert not {"sh", "bash", "sudo", "awk", "tee"} & {*argv}
                assert not {"dma_buf", "dma-buf"} & {*argv}, "it is no module"


@pytest.mark.parametrize("node", NODES)
def test_manual_steps_are_the_last_of_an_action(node: str) -> None:
    for name, offer in offers_on(node).items():
        if offer.plan is None or name.startswith("fix:"):
            continue
        kinds = [step.is_instruction for step in offer.plan.steps]
        assert kinds == sorted(kinds)
        assert not kinds[0], "nothing in it can be run"


@pytest.mark.parametrize("node", NODES)
def test_a_plan_that_reboots_says_so(node: str) -> None:
    plans = [offer.plan for offer in offers_on(node).values() if offer.plan is not None]
    for plan in plans:
        assert plan.needs_reboot or not any(map(is_reboot, plan.steps)), plan.title
        assert plan.disturbs or not plan.needs_reboot, plan.title


@pytest.mark.parametrize(
    ("command", "reads"),
    [
        ("mlxlink -d 0000:18:00.0 -m -c", True),
        ("mlxlink -d 0000:18:00.0 --port_state DN", False),
        ("devlink dev param show pci/0000:18:00.0 name enable_rdma", True),
        ("devlink dev param set pci/0000:18:00.0 name enable_rdma value true cmode runtime", False),
        ("rdma system show", True),
        ("rdma system set netns exclusive", False),
        ("journalctl -b -u systemd-modules-load", True),
        ("journalctl --vacuum-time=1s", False),
        ("nvidia-smi -q", True),
        ("nvidia-smi -pm 1", False),
        ("a-program-that-gdrtop-does-not-know", False),
    ],
)
def test_a_command_only_reads_if_it_is_known_to(command: str, reads: bool) -> None:
    assert only_reads(command.split()) == reads


@pytest.mark.slow
def test_titles_are_constant_for_an_id() -> None:
    titles: dict[str, set[str]] = {}
    for node in (*SIMULATED_NAMES, *FAULTY.values()):
        for offer in offers_on(node).values():
            titles.setdefault(offer.id, set()).add(offer.title)
    assert {name for name, same_title in titles.items() if len(same_title) > 1} == set()


def test_every_finding_with_a_fix_is_offered_with_its_plan() -> None:
    node = "hgx-h100+pcie-aspm-on"
    fix = offers_on(node)["fix:pcie-aspm-on"]
    assert fix.plan == findings_on(node)["pcie-aspm-on"].fix
    assert fix.title == "Fix: Power saving (ASPM) is enabled on a PCIe link of a GPU or NIC"


def test_an_unreadable_node_has_no_actions_and_says_why() -> None:
    whole = examination_of("hgx-h100")
    parts = ("gpudirect", "modules", "gpus", "rdma", "pci", "kernel", "platform")
    others = ("config_space", "services", "tools", "module_files", "port_health", "processes")
    blind = replace(
        whole,
        node=replace(whole.node, **dict.fromkeys(parts, NEEDS_ROOT)),
        **dict.fromkeys(others, NEEDS_ROOT),
    )
    for offer in offers(blind, [finding for finding in findings(blind) if finding.status is Status.FOUND]):
        assert offer.plan is None
        assert "needs root" in offer.why_not, offer.id


def test_a_failing_action_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(examination: object) -> str:
        raise ValueError("\x1b[31mno")

    broken = Action("broken", "Break", fail)
    monkeypatch.setattr(catalogue, "ACTIONS", (broken, *ACTIONS))
    first, second = offers(examination_of("hgx-h100"), ())[:2]
    assert first.plan is None
    assert first.why_not.startswith("internal error: ValueError")
    assert "\x1b" not in first.why_not
    assert second.id == "load-modules"


def test_a_healthy_node_needs_no_repairs() -> None:
    """What is offered where nothing is wrong is what an admin may want all the same."""
    offered = {name for name, offer in offers_on("hgx-h100").items() if offer.plan is not None}
    assert offered == {
        "unload-peermem",
        "reload-peermem",
        "persist-modules",
        "restart-openibd",
        "restart-fabric-manager",
        "restart-persistence-daemon",
    }


def test_a_step_is_an_instruction_only_without_command_and_file() -> None:
    assert Step("words").is_instruction


@pytest.mark.parametrize(
    "fault",
    ["module-blacklisted", "peermem-parameter-wrong", "initramfs-stale", "gpu-without-driver-nouveau"],
)
def test_a_fix_rebuilds_the_boot_images_of_all_kernels(fault: str) -> None:
    """The running kernel's alone is not enough: another one may boot next."""
    plans = [offer.plan for offer in offers_on(FAULTY[fault]).values() if offer.id.startswith("fix:")]
    texts = [f"{step.why} {' '.join(step.argv)}" for plan in plans if plan is not None for step in plan.steps]
    about = [text for text in texts if "initramfs" in text or "dracut" in text]
    assert about
    assert all("-k all" in text or "--regenerate-all" in text for text in about)
