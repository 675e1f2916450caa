"""Restarting the services behind GPUs and RDMA, where their units are installed."""

from __future__ import annotations

from probes.checks.module_facts import PEERMEM, is_present, module_of
from probes.driver_container import STORAGE
from probes.examination import Examination
from probes.modules import ModuleState
from probes.pci import PciKind
from probes.plan import Plan, Step
from probes.plans.loading import load_step
from probes.plans.obstacles import bar_of
from probes.plans.peermem import unload_step
from probes.services import Service, ServiceState
from probes.unknown import Reason, Unknown

_OPENIBD, _MANAGER, _DAEMON = "openibd", "nvidia-fabricmanager", "nvidia-persistenced"
_RDMA = ("ib_core", "ib_uverbs", "rdma_cm", "mlx5_core", "mlx5_ib")
# OFED's own modules, which openibd unloads itself.
_OFED_OWN = ("ib_", "rdma_", "iw_", "mlx4_", "mlx5_")
_OFED_EXCEPT = (*STORAGE, "ib_srpt")
_ALL_RDMA = (
    "all RDMA of this node: programs that use it lose their devices, and the netdevs of these NICs go down, "
    "an SSH session over them too"
)
# NVIDIA Fabric Manager user guide, ABORT_CUDA_JOBS_ON_FM_EXIT: 1 is the default, without effect from H100 on.
_CUDA = "CUDA: before H100 running jobs are aborted, and no program starts until Fabric Manager is back"


def restart_openibd(examination: Examination) -> Plan | str:
    """Restarts OFED's stack; nvidia_peermem uses it, and has to be out of its way."""
    service = _installed(examination, _OPENIBD)
    if isinstance(service, str):
        return service
    modules, peermem = examination.node.modules, module_of(examination, PEERMEM)
    if isinstance(modules, Unknown) or isinstance(peermem, Unknown):
        return f"which modules use the RDMA stack is unknown: {peermem}"
    if modules.loading_disabled:
        return "kernel.modules_disabled is 1: no module can be unloaded until a reboot"
    older = modules.modules["nv_peer_mem"]
    users = {user for name in _RDMA for user in modules.modules[name].used_by}
    foreign = sorted(user for user in users - {*_RDMA, PEERMEM, older.name} if not _is_ofeds(user))
    if foreign:
        return f"openibd would fail while {', '.join(foreign)} use the RDMA stack: end what needs them first"
    before: list[Step] = []
    after: list[Step] = []
    if is_present(peermem):
        obstacle = bar_of(examination, PEERMEM)
        if obstacle is not None:
            return f"nvidia_peermem is in its way, and could not be loaded again afterwards: {obstacle}"
        before.append(unload_step(examination))
        after.append(load_step(examination, PEERMEM))
    if older.state is ModuleState.LIVE:
        before.append(
            Step(
                "unloads nv_peer_mem, which uses ib_core too",
                ("rmmod", older.name),
                undo=("modprobe", older.name),
            )
        )
        after.append(Step("loads nv_peer_mem again", ("modprobe", older.name), undo=("rmmod", older.name)))
    restart = Step(
        "unloads OFED's modules and loads those on disk; it fails while others use them",
        ("systemctl", "restart", _OPENIBD),
    )
    held = examination.reading.peermem.refcnt if before else 0
    regions = (
        ""
        if isinstance(held, Unknown) or held <= 0
        else (f"; jobs that registered GPU memory through nvidia_peermem hold it (refcnt {held} now)")
    )
    return Plan(
        "Restart openibd",
        (*before, restart, *after),
        reversible=False,
        disturbs=f"{_ALL_RDMA}{regions}",
        note="the driver has to be built anew where OFED is of another build than before",
    )


def _is_ofeds(user: str) -> bool:
    return user.startswith(_OFED_OWN) and user not in _OFED_EXCEPT


def restart_fabric_manager(examination: Examination) -> Plan | str:
    """Restarts Fabric Manager on a node with NVSwitches."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return f"whether there are NVSwitches is unknown: {pci}"
    switches = sum(one.kind is PciKind.NVSWITCH for one in pci.functions.values())
    if not switches:
        return "no NVSwitch here"
    service = _installed(examination, _MANAGER)
    if isinstance(service, str):
        return service
    step = Step(f"sets up the {switches} NVSwitches anew", ("systemctl", "restart", _MANAGER))
    return Plan("Restart Fabric Manager", (step,), reversible=False, disturbs=_CUDA)


def restart_persistence_daemon(examination: Examination) -> Plan | str:
    """Restarts nvidia-persistenced."""
    service = _installed(examination, _DAEMON)
    if isinstance(service, str):
        return service
    step = Step("lets the daemon take hold of the GPUs anew", ("systemctl", "restart", _DAEMON))
    return Plan(
        "Restart nvidia-persistenced",
        (step,),
        reversible=False,
        note="GPUs that nobody uses meanwhile lose their settings (clocks, power limits)",
    )


def _installed(examination: Examination, name: str) -> Service | str:
    """The service where systemd can restart it; else why it cannot."""
    services = examination.services
    service = services if isinstance(services, Unknown) else services.services[name]
    if isinstance(service, Unknown):
        return f"whether {name} is installed is unknown: {service}"
    if isinstance(service.path, Unknown):
        if service.path.reason is not Reason.NOT_THERE:
            return f"whether {name} is installed is unknown: {service.path}"
        if service.state is ServiceState.ACTIVE:
            return f"{name} runs without a unit here: restart the container that runs it"
        return f"{name} is not installed"
    return f"{name} is masked" if service.masked else service
