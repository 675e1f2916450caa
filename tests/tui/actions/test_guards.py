"""What speaks against an action is said before it runs, with names."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from probes.base.origin import Origin, Source
from probes.base.plan import FileChange, Plan, Step, instruction
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.network.network_dependencies import NetworkDependency, NetworkDependencyFacts, probe
from probes.host.machine.local import LocalHost
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.host.remote import remote_host
from probes.host.remote.remote_host import RemoteHost
from probes.host.remote.transport import Target
from probes.plans.catalogue import Offer
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.network import route_over
from probes.snapshot.examination import Examination, examine
from tests.support.action_screens import QuickHost
from tests.support.local_node import SimulatedConnection
from tui.actions.audit_log import MemoryLog
from tui.actions.dispatcher import Dispatcher, Prepared
from tui.actions.events import RunEvent, RunOutcome
from tui.actions.guards import clearance, unloads_driver
from tui.actions.manual_steps import runnable, why_manual

BUSY = "hgx-h100"  # a job runs on it, through nvidia-peermem
IDLE = "hgx-h100+peermem-not-loaded"


def examination(name: str = BUSY) -> Examination:
    return examine(SimulatedHost(name))


def unload() -> Plan:
    return Plan("Unload nvidia_peermem", (Step("unloads it", ("rmmod", "nvidia_peermem")),))


def test_unloading_a_used_module_names_count_and_processes() -> None:
    cleared = clearance(unload(), examination(), read_only=False)
    assert not cleared.refused
    assert cleared.word == "hgx-h100"
    assert "nvidia_peermem is in use (refcnt " in cleared.affected[0]
    assert any(
        "train.py (alice, Slurm job 4711): 8 processes use GPUs and RDMA" in line for line in cleared.affected
    )


def test_a_plan_that_affects_nobody_needs_no_host_name() -> None:
    plan = Plan("Load nvidia_uvm", (Step("loads it", ("modprobe", "nvidia_uvm")),))
    assert clearance(plan, examination(), read_only=False).affected == ()


@pytest.mark.parametrize(
    "argv",
    [
        ("systemctl", "restart", "openibd"),
        ("ip", "link", "set", "ens0np0", "down"),
        ("ip", "link", "set", "ens0np0", "mtu", "1500"),
        ("setpci", "-s", "0000:17:00.0", "ECAP_ACS+6.w=0000:000c"),
        ("modprobe", "-r", "nvidia-peermem"),
        ("nvidia-smi", "--gpu-reset", "-i", "0"),
    ],
)
def test_a_plan_that_may_affect_jobs_needs_the_host_name_whatever_it_says(argv: tuple[str, ...]) -> None:
    plan = Plan("Harmless", (Step("no harm", argv),))
    assert clearance(plan, examination(), read_only=False).affected


def test_hidden_processes_count_as_affected() -> None:
    unseen = replace(examination(), processes=Unknown(Reason.NEEDS_ROOT, "/proc"))
    (*_, told) = clearance(unload(), unseen, read_only=False).affected
    assert told == "processes that use GPUs or RDMA are unknown: needs root"


def test_read_only_runs_nothing() -> None:
    assert clearance(unload(), examination(), read_only=True).refused == "gdrtop was started with --read-only"


@pytest.mark.parametrize("source", [Source.TREE, Source.RECORDED])
def test_no_action_runs_on_trees_and_recordings(source: Source) -> None:
    seen = examination()
    elsewhere = replace(seen, node=replace(seen.node, origin=Origin(source, "/dump")))
    assert "not a running node" in clearance(unload(), elsewhere, read_only=False).refused


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("systemctl", "reboot"), "gdrtop does not reboot the node"),
        (("systemctl", "poweroff"), "gdrtop does not run systemctl poweroff"),
        (("dkms", "autoinstall"), "run it yourself"),
        (("mlxconfig", "-y", "set"), "firmware"),
        (("sh", "-c", "true"), "gdrtop does not run this program"),
        (("rm", "-rf", "/"), "gdrtop does not run this program"),
        (("modprobe", "nvidia"), ""),
    ],
)
def test_manual_steps_are_shown_and_not_run(argv: tuple[str, ...], why: str) -> None:
    told = why_manual(Step("does it", argv))
    assert told == why if not why else why in told


@pytest.mark.parametrize(
    ("argv", "is_installed"),
    [
        (("dnf", "-y", "install", "nvidia-open"), True),
        (("dnf", "-y", "install", "doca-ofed"), False),
        (("dpkg", "-i", "/root/doca-host_3.2.3-019000-25.10-ubuntu2404_amd64.deb"), False),
        (("rpm", "-U", "--replacepkgs", "/root/doca-host-3.2.2.rpm"), False),
    ],
)
def test_a_simulated_node_installs_packages_but_not_doca_ofed(
    argv: tuple[str, ...], is_installed: bool
) -> None:
    why = why_manual(Step("installs it", argv), is_simulated=True)
    assert why == ("" if is_installed else "gdrtop does not install packages")


def test_steps_after_a_manual_step_are_not_run() -> None:
    load = Step("loads it", ("modprobe", "nvidia"))
    plan = Plan("Rebuild", (load, instruction("install the headers"), load))
    assert runnable(plan) == (load,)


def test_a_manual_plan_is_refused_with_the_reason() -> None:
    plan = Plan("Reboot", (Step("starts anew", ("systemctl", "reboot")),))
    assert "gdrtop does not reboot the node" in clearance(plan, examination(), read_only=False).refused


def test_unloading_the_driver_differs_from_unloading_its_users() -> None:
    assert unloads_driver(Plan("", (Step("", ("modprobe", "-r", "nvidia_uvm", "nvidia")),)))
    assert not unloads_driver(unload())
    assert not unloads_driver(Plan("", (Step("", ("modprobe", "nvidia")),)))


# The dispatcher


def prepared_of(host: Host, name: str, read_only: bool = False) -> tuple[Dispatcher, Prepared]:
    dispatcher = Dispatcher(host, read_only)
    seen = examine(host)
    offer = next(offer for offer in dispatcher.offers(seen, findings(seen)) if offer.id == name)
    prepared = dispatcher.prepared(offer, seen)
    assert isinstance(prepared, Prepared), prepared
    return dispatcher, prepared


def test_the_wrong_name_runs_nothing_and_the_right_one_does() -> None:
    host = QuickHost(f"{BUSY}+acs-on")
    dispatcher, prepared = prepared_of(host, "acs-redirect-off")
    events: list[RunEvent] = []
    ended = dispatcher.run(prepared, "other-node", events.append)
    assert ended.outcome is RunOutcome.REFUSED
    assert "hgx-h100" in ended.why
    assert dispatcher.own_history() == ()
    ended = dispatcher.run(prepared, " hgx-h100 ", events.append)
    assert ended.outcome is RunOutcome.LEFT
    assert ended.summary == "done; 3 manual steps left"
    assert dispatcher.own_history()[0].action == "acs-redirect-off"


def test_a_job_that_started_after_the_plan_was_shown_is_noticed() -> None:
    host = SimulatedHost(BUSY)
    dispatcher, prepared = prepared_of(host, "unload-peermem")
    idle = replace(prepared, clearance=replace(prepared.clearance, affected=(), word=""))
    ended = dispatcher.run(idle, "", lambda event: None)
    assert ended.outcome is RunOutcome.REFUSED
    assert "changed since the plan was shown (train.py (alice, Slurm job 4711)" in ended.why


def test_the_kernels_refusal_to_unload_a_used_module_is_explained() -> None:
    host = SimulatedHost(BUSY)
    dispatcher, prepared = prepared_of(host, "unload-peermem")
    ended = dispatcher.run(prepared, "hgx-h100", lambda event: None)
    assert ended.outcome is RunOutcome.FAILED
    assert "nvidia_peermem is in use" in ended.why


def test_the_dispatcher_refuses_with_read_only_too() -> None:
    dispatcher, prepared = prepared_of(SimulatedHost(IDLE), "load-peermem", read_only=True)
    assert "--read-only" in prepared.clearance.refused
    assert dispatcher.run(prepared, "", lambda event: None).outcome is RunOutcome.REFUSED


def acs(dispatcher: Dispatcher, host: SimulatedHost, name: str) -> Offer:
    seen = examine(host)
    return next(offer for offer in dispatcher.offers(seen, findings(seen)) if offer.id == name)


@pytest.mark.slow
def test_acs_redirects_are_cleared_and_restored() -> None:
    host = QuickHost(f"{BUSY}+acs-on")
    dispatcher, prepared = prepared_of(host, "acs-redirect-off")
    assert acs(dispatcher, host, "acs-redirect-back").plan is None
    dispatcher.run(prepared, "hgx-h100", lambda event: None)
    assert "acs-redirect-enabled" not in found(host)
    back = dispatcher.prepared(acs(dispatcher, host, "acs-redirect-back"), examine(host))
    assert isinstance(back, Prepared)
    assert dispatcher.run(back, "hgx-h100", lambda event: None).outcome is RunOutcome.DONE
    assert "acs-redirect-enabled" in found(host)
    assert acs(dispatcher, host, "acs-redirect-back").plan is None


def found(host: SimulatedHost) -> set[str]:
    return {finding.id for finding in findings(examine(host)) if finding.status.value == "found"}


@pytest.mark.slow
def test_a_run_is_undone_only_once() -> None:
    host = SimulatedHost(IDLE)
    dispatcher, prepared = prepared_of(host, "persist-modules")
    file = next(step.file for step in prepared.plan.steps if step.file)
    assert dispatcher.run(prepared, "", lambda event: None).outcome is RunOutcome.DONE
    assert isinstance(host.read(file.path), str)
    (run,) = dispatcher.own_history()
    undo = dispatcher.prepared(dispatcher.undo_of(run), examine(host))
    assert isinstance(undo, Prepared)
    assert undo.plan.steps[0].file == FileChange(file.path, None)
    assert dispatcher.run(undo, "", lambda event: None).outcome is RunOutcome.DONE
    assert isinstance(host.read(file.path), Unknown)
    assert dispatcher.undo_of(run).why_not == "this run has already been undone"


def test_without_root_and_sudo_only_the_script_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.actions.local_commands.os.geteuid", lambda: 1000)
    monkeypatch.setattr("tui.actions.local_commands.find_command", lambda name: None)
    offer = Offer("load", "Load nvidia_uvm", Plan("Load", (Step("loads it", ("modprobe", "nvidia_uvm")),)))
    dispatcher = Dispatcher(LocalHost(), log=MemoryLog())
    prepared = dispatcher.prepared(offer, examination(IDLE))
    assert isinstance(prepared, Prepared)
    assert "sudo is not installed; run the script" in prepared.clearance.refused
    assert dispatcher.run(prepared, "", lambda event: None).outcome is RunOutcome.REFUSED


# What is cut off

OPENIBD = Plan("Restart openibd", (Step("restarts it", ("systemctl", "restart", "openibd")),))


def network(name: str = f"{IDLE},ssh-over-nic") -> NetworkDependencyFacts:
    return probe(SimulatedHost(name))


def test_a_step_that_takes_down_the_sessions_nic_names_it_on_an_idle_node_too() -> None:
    idle = replace(examination(IDLE), processes=ProcessFacts((), 0, 0, Unknown(Reason.NOT_THERE, "")))
    cleared = clearance(OPENIBD, idle, False, network())
    assert cleared.affected == ()
    assert cleared.cuts == (
        "systemctl restart openibd takes down ens4np0, which carries this SSH session (from 10.0.0.5)",
        "systemctl restart openibd takes down ens4np0, which carries the default route",
    )
    assert cleared.word == "hgx-h100"
    assert cleared.is_detached


def test_a_session_over_another_nic_is_not_affected() -> None:
    cleared = clearance(OPENIBD, examination(IDLE), False, network(IDLE))
    assert cleared.cuts == ()
    assert not cleared.is_detached


def test_a_nic_below_a_bond_is_named_with_it() -> None:
    facts = network()
    over = NetworkDependency("the default route", ("bond0", "ens4np0", "ens9np0"))
    (told,) = clearance(OPENIBD, examination(IDLE), False, replace(facts, dependencies=(over,))).cuts
    assert told.endswith("takes down ens4np0, ens9np0 (part of bond0), which carries the default route")


def test_an_unknown_nic_counts_as_cut() -> None:
    facts = network()
    unmapped = replace(facts, dependencies=(NetworkDependency("the default route", ("br-ex",)),))
    (told,) = clearance(OPENIBD, examination(IDLE), False, unmapped).cuts
    assert told == "systemctl restart openibd may cut the default route: its NIC is unknown (br-ex)"
    unread = replace(facts, dependencies=(), unread=(Unknown(Reason.TIMED_OUT, "/proc/net/tcp"),))
    (told,) = clearance(OPENIBD, examination(IDLE), False, unread).cuts
    assert "may cut the network: /proc/net/tcp unknown (timed out)" in told
    silent = Unknown(Reason.TIMED_OUT, "network", "no answer for 5 s")
    (told,) = clearance(OPENIBD, examination(IDLE), False, silent).cuts
    assert "may cut the network: cannot tell what uses it (timed out" in told


def test_the_undo_of_a_step_is_checked_by_its_command() -> None:
    down = Plan("Undo", (Step("undoes it", ("ip", "link", "set", "dev", "ens4np0", "down")),))
    assert len(clearance(down, examination(IDLE), False, network()).cuts) == 2


def test_under_lockdown_a_register_write_is_refused() -> None:
    seen = examination(IDLE)
    kernel = seen.node.kernel
    assert not isinstance(kernel, Unknown)
    locked = replace(seen, node=replace(seen.node, kernel=replace(kernel, lockdown="integrity")))
    write = Plan("Write", (Step("writes", ("setpci", "-s", "0000:17:00.0", "CAP_EXP+8.w=5000:7000")),))
    assert "kernel lockdown is on (integrity)" in clearance(write, locked, False).refused
    assert not clearance(write, seen, False).refused


def with_openibd(name: str) -> SimulatedHost:
    host = SimulatedHost(name)
    host.tree.add("/etc/systemd/system/openibd.service", "[Service]\nType=oneshot\n")
    return host


def test_the_wrong_name_cuts_nothing() -> None:
    host = with_openibd(f"{IDLE},ssh-over-nic")
    dispatcher, prepared = prepared_of(host, "restart-openibd")
    assert len(prepared.clearance.cuts) == 2
    assert dispatcher.run(prepared, "", lambda event: None).outcome is RunOutcome.REFUSED


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimulatedHost], RemoteHost]:
    """Connect to a simulated node as to one that is elsewhere; its commands cannot be started."""

    def connect(simulated: SimulatedHost) -> RemoteHost:
        monkeypatch.setattr(remote_host, "Connection", lambda *_: SimulatedConnection(simulated))
        host = RemoteHost(Target("node7", ("/missing/ssh", "{host}")))
        host.read_ahead(examine)
        return host

    return connect


@pytest.mark.slow
def test_a_plan_that_may_cut_off_another_node_is_refused(
    elsewhere: Callable[[SimulatedHost], RemoteHost],
) -> None:
    host = elsewhere(with_openibd(f"{IDLE},ssh-over-nic"))
    dispatcher, prepared = prepared_of(host, "restart-openibd")
    assert prepared.clearance.cuts[0].endswith(
        "takes down ens4np0, which carries this SSH session (from 10.0.0.5)"
    )
    refused = "it may cut off this connection; run gdrtop on the node itself"
    assert prepared.clearance.refused == refused
    ended = dispatcher.run(prepared, prepared.clearance.word, lambda event: None)
    assert (ended.outcome, ended.why) == (RunOutcome.REFUSED, refused)


def test_a_route_of_another_node_that_changed_after_the_plan_was_shown_is_noticed(
    elsewhere: Callable[[SimulatedHost], RemoteHost],
) -> None:
    simulated = with_openibd("pcie-l40s")
    dispatcher, prepared = prepared_of(elsewhere(simulated), "restart-openibd")
    assert not prepared.clearance.refused
    route_over(simulated.tree, "ens0np0")
    ended = dispatcher.run(prepared, prepared.clearance.word, lambda event: None)
    assert ended.outcome is RunOutcome.REFUSED
    assert "changed since the plan was shown (systemctl restart openibd takes down ens0np0" in ended.why


def test_a_session_that_started_after_the_plan_was_shown_is_noticed() -> None:
    host = with_openibd("pcie-l40s")
    for pid in [name for name in host.tree.directories["/proc"] if name.startswith("410")]:
        host.tree.remove(f"/proc/{pid}")
    dispatcher, prepared = prepared_of(host, "restart-openibd")
    assert prepared.clearance.word == ""
    route_over(host.tree, "ens0np0")
    ended = dispatcher.run(prepared, "", lambda event: None)
    assert ended.outcome is RunOutcome.REFUSED
    assert "changed since the plan was shown (systemctl restart openibd takes down ens0np0" in ended.why


def test_a_session_that_started_while_the_host_name_was_typed_is_noticed() -> None:
    host = with_openibd("pcie-l40s")
    dispatcher, prepared = prepared_of(host, "restart-openibd")
    assert prepared.clearance.affected
    assert not prepared.clearance.cuts
    route_over(host.tree, "ens0np0")
    ended = dispatcher.run(prepared, prepared.clearance.word, lambda event: None)
    assert ended.outcome is RunOutcome.REFUSED
    assert "changed since the plan was shown (systemctl restart openibd takes down ens0np0" in ended.why


@pytest.mark.slow
def test_a_running_check_does_not_answer_for_the_network() -> None:
    """Both read routes: the check for the roles of NICs, an action for what it would cut."""
    host = with_openibd(f"{IDLE},ssh-over-nic")
    gate = threading.Event()

    def ask() -> Unknown:
        gate.wait()
        return Unknown(Reason.TIMED_OUT, "/proc/mounts")

    start_probe(host, "network", ask)
    try:
        _, prepared = prepared_of(host, "restart-openibd")
    finally:
        gate.set()
    assert len(prepared.clearance.cuts) == 2


def test_rdma_topo_is_never_run() -> None:
    assert "kernel command line" in why_manual(Step("writes", ("rdma_topo", "write-grub-acs")))


# History


def begun(boot_id: str, pid: int) -> str:
    fields = {"host": "h100-07", "boot_id": boot_id, "user": "root", "pid": pid, "action": "x", "title": "X"}
    return json.dumps({"event": "begin", "run": "1", "at": 1.0, **fields})


@pytest.mark.parametrize(
    ("boot_id", "pid", "outcome"),
    [
        ("here", 41000, RunOutcome.STILL_RUNNING),  # as a detached run that another gdrtop has begun
        ("here", 99999, RunOutcome.UNKNOWN),
        ("before", 41000, RunOutcome.UNKNOWN),
    ],
)
def test_a_run_without_an_end_is_running_while_its_process_exists(
    boot_id: str, pid: int, outcome: RunOutcome
) -> None:
    host, log = SimulatedHost(BUSY), MemoryLog()
    host.tree.add("/proc/sys/kernel/random/boot_id", "here\n")
    log.append(begun(boot_id, pid))
    ((run,), _) = Dispatcher(host, log=log).history()
    assert run.outcome is outcome
