"""Replacing nv_peer_mem, Mellanox's predecessor of nvidia_peermem.

Names of module, service and packages: Mellanox/nv_peer_memory, debian/control and nvidia_peer_memory.spec;
its init script unloads the module at stop, and accepts that there is none.
"""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.modules import KernelModule, ModuleState
from probes.facts.system.services import ServiceState
from probes.plans.load_modules import load_step
from probes.plans.obstacles import bar_of
from probes.queries.modules import PEERMEM, is_present, module_of
from probes.snapshot.examination import Examination

OLDER = "nv_peer_mem"
_PACKAGES = (
    "Remove its package: nvidia-peer-memory and nvidia-peer-memory-dkms (Debian, Ubuntu), nvidia_peer_memory "
    "(RPM)."
)


def replace_nv_peer_mem(examination: Examination) -> Plan | str:
    """Remove the old module and its service, and load nvidia_peermem."""
    older, newer = module_of(examination, OLDER), module_of(examination, PEERMEM)
    for module in (older, newer):
        if isinstance(module, Unknown):
            return f"it is unknown which peer-memory modules are loaded: {module}"
    assert not isinstance(older, Unknown)
    assert not isinstance(newer, Unknown)
    service = _service_steps(examination)
    if isinstance(service, str):
        return service
    loaded = is_present(older)
    if not loaded and not service:
        return "nv_peer_mem is not loaded, and no service loads it"
    unload = Step(
        "Unload the old module first (fails and changes nothing while jobs use it)",
        ("rmmod", OLDER),
        undo=("modprobe", OLDER),
    )
    steps = [*((unload,) if loaded else ()), *service]
    if not is_present(newer):
        obstacle = bar_of(_once_gone(examination, older), PEERMEM)
        if obstacle is not None:
            return f"nvidia_peermem cannot be loaded instead: {obstacle}"
        steps.append(load_step(examination, PEERMEM))
    return Plan(
        "Replace nv_peer_mem by nvidia_peermem",
        (*steps, instruction(_PACKAGES)),
        disturbs=_holders(older.refcnt if loaded else 0),
    )


def _once_gone(examination: Examination, older: KernelModule) -> Examination:
    """The node as it is once nv_peer_mem has been unloaded."""
    facts = examination.node.modules
    assert not isinstance(facts, Unknown)
    modules = {**facts.modules, OLDER: replace(older, state=ModuleState.NOT_LOADED)}
    return replace(examination, node=replace(examination.node, modules=replace(facts, modules=modules)))


def _holders(refcnt: Maybe[int]) -> str:
    if refcnt == 0:
        return ""
    number = "" if isinstance(refcnt, Unknown) else f" (refcnt {refcnt} now)"
    return f"jobs that registered GPU memory{number}: rmmod fails until they have ended"


def _service_steps(examination: Examination) -> tuple[Step, ...] | str:
    """Disable the service where it is there; else say why that is unknown."""
    services = examination.services
    service = services if isinstance(services, Unknown) else services.services[OLDER]
    if isinstance(service, Unknown):
        return f"it is unknown whether there is a service nv_peer_mem: {service}"
    if isinstance(service.path, Unknown):
        if service.path.reason is Reason.NOT_THERE:
            return ()
        return f"it is unknown whether there is a service nv_peer_mem: {service.path}"
    # Of a script without directories of runlevels it is unknown, and nothing starts it.
    enabled = service.enabled
    starts = enabled.reason is not Reason.NOT_THERE if isinstance(enabled, Unknown) else enabled
    if service.masked or (not starts and service.state in (ServiceState.INACTIVE, ServiceState.FAILED)):
        return ()
    return (
        Step(
            "Stop the old service, also at boot",
            ("systemctl", "disable", "--now", OLDER),
            undo=("systemctl", "enable", OLDER),
        ),
    )
