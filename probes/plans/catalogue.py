"""All actions on a node, in the order of the list, and all fixes of findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probes.base.frozen import frozen
from probes.base.plan import NothingToDo, Plan
from probes.base.text import printable
from probes.plans.driver import persistence_on
from probes.plans.load_modules import load_modules, load_peermem, persist_modules, unpersist_modules
from probes.plans.pcie import raise_reads, redirects_off
from probes.plans.peermem import reload_peermem, replace_nv_peer_mem, unload_peermem
from probes.plans.ports import raise_ports
from probes.plans.services import restart_fabric_manager, restart_openibd, restart_persistence_daemon
from probes.queries.finding import Finding
from probes.snapshot.examination import Examination


@frozen
class Offer:
    """One action on this node: its plan, or why it has none."""

    id: str  # "load-modules", or "fix:<check id>"; never changes
    title: str  # "Load missing modules"; one line, constant for the id
    plan: Plan | None
    why_not: str = ""  # why there is no plan, as a sentence

    @property
    def is_done(self) -> bool:
        """Return whether there is no plan because nothing is left to do."""
        return self.plan is None and isinstance(self.why_not, NothingToDo)


@frozen
class Action:
    """An action of the list, on every node."""

    id: str
    title: str
    plan: Callable[[Examination], Plan | str]  # the plan; else why there is none


ACTIONS = (
    Action("load-modules", "Load missing modules", load_modules),
    Action("load-peermem", "Load nvidia_peermem", load_peermem),
    Action("unload-peermem", "Unload nvidia_peermem", unload_peermem),
    Action("replace-nv-peer-mem", "Replace nv_peer_mem with nvidia_peermem", replace_nv_peer_mem),
    Action("reload-peermem", "Reload nvidia_peermem", reload_peermem),
    Action("persist-modules", "Load the modules at every boot", persist_modules),
    Action("unpersist-modules", "Undo gdrtop's module loading at boot", unpersist_modules),
    Action("acs-redirect-off", "Clear ACS redirects between GPUs and NICs", redirects_off),
    Action("mrrs", "Raise the NICs' MaxReadReq to 4096 bytes", raise_reads),
    Action("persistence-on", "Turn GPU persistence on", persistence_on),
    Action("raise-ports", "Enable disabled ports", raise_ports),
    Action("restart-openibd", "Restart openibd", restart_openibd),
    Action("restart-fabric-manager", "Restart Fabric Manager", restart_fabric_manager),
    Action("restart-persistence-daemon", "Restart nvidia-persistenced", restart_persistence_daemon),
)


def offers(examination: Examination, findings: Sequence[Finding]) -> tuple[Offer, ...]:
    """Return every action in the order of the list, then every fix of a finding."""
    fixes = (
        Offer(f"fix:{finding.id}", f"Fix: {finding.problem}", finding.fix)
        for finding in findings
        if finding.fix is not None
    )
    return (*(_offer(action, examination) for action in ACTIONS), *fixes)


def _offer(action: Action, examination: Examination) -> Offer:
    try:
        answer = action.plan(examination)
    except Exception as error:  # an action that fails says so, and the others stay
        reason = printable(f"{type(error).__name__}: {error}", 200)
        return Offer(action.id, action.title, None, f"internal error: {reason}")
    if isinstance(answer, str):
        return Offer(action.id, action.title, None, answer)
    return Offer(action.id, action.title, answer)
