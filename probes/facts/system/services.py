"""The services of GPUs and RDMA: installed, started at boot, running, failed.

Unit files and processes answer most questions. systemctl runs once, for installed services without a process:
a oneshot service (openibd) is active without one, and only systemd knows about failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, not_found
from probes.facts.system.systemd_units import UnitFile, modprobe_lines, read_units
from probes.host.protocol import Host


class ServiceState(Enum):
    """State of a service (systemctl(1), ActiveState)."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    FAILED = "failed"
    STARTING = "activating"
    STOPPING = "deactivating"


@frozen
class Service:
    """One service."""

    name: str  # "nvidia-fabricmanager", without ".service"
    why: str  # one line for the admin: what it is for
    path: Maybe[str]  # unit file, or script in /etc/init.d; NOT_THERE: not installed
    masked: bool
    enabled: Maybe[bool]  # started at boot
    state: Maybe[ServiceState]  # also ACTIVE if only a container runs it; NOT_THERE: not installed


@frozen
class ServiceFacts:
    """Every service of SERVICES, by name, and the modules that services load with modprobe."""

    services: dict[str, Service]
    modprobe: dict[str, str] = field(default_factory=dict)  # module -> "FILE: ExecStart=/sbin/modprobe …"
    unread: tuple[str, ...] = ()  # existing unit files that could not be read


SERVICES = {
    "nvidia-fabricmanager": "sets up NVSwitch; without it CUDA fails with error 802 on NVSwitch machines",
    "nvidia-persistenced": "keeps the driver initialized; without it the first CUDA call and NVML are slow",
    "nvidia-imex": "shares GPU memory between nodes in an NVLink domain (GB200, GB300)",
    "nvidia-dcgm": "monitors GPUs; keeps the driver in use, as every program with /dev/nvidia0 open does",
    "openibd": "loads OFED's modules at boot; restarting it unloads them",
    "nv_peer_mem": "loads the predecessor of nvidia_peermem, which then cannot be loaded",
    "systemd-modules-load": "loads the modules in modules-load.d; fails if one fails to load",
    "opensm": "subnet manager on this node; an InfiniBand fabric needs one somewhere",
}
"""Name → what it is for."""

# The kernel truncates a name to 15 characters (TASK_COMM_LEN).
_COMMS = {
    "nvidia-fabricmanager": "nv-fabricmanager"[:15],
    "nvidia-persistenced": "nvidia-persistenced"[:15],
    "nvidia-imex": "nvidia-imex",
    "nvidia-dcgm": "nv-hostengine",
    "opensm": "opensm",
}
_CGROUPS = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")  # v2, v1
_INIT = "/etc/init.d"
_NO_PROCESS = Unknown(Reason.NOT_THERE, "systemctl show", "it has no process, and systemd does not respond")
_MAX_PROCESSES = 32768
_SECONDS = 2.0


def probe(host: Host) -> ServiceFacts:
    """Read unit files, control groups and process names; run systemctl for services without a process."""
    units = read_units(host, tuple(f"{name}.service" for name in SERVICES))
    running, not_running = _running(host)
    services = {
        name: _service(host, name, unit, running, not_running)
        for name, unit in zip(SERVICES, units, strict=True)
    }
    idle = [name for name, service in services.items() if _may_ask_systemd(service)]
    if idle:
        states = _ask_systemd(host, idle)
        for name in idle:
            state = states if isinstance(states, Unknown) else states.get(name)
            if state is not None:
                services[name] = _with_state(services[name], state)
    return ServiceFacts(services, *modprobe_lines(host))


def _service(host: Host, name: str, unit: UnitFile, running: frozenset[str], not_running: Unknown) -> Service:
    path, enabled = unit.path, unit.enabled
    if isinstance(path, Unknown):
        script = host.size(f"{_INIT}/{name}")
        if not isinstance(script, Unknown):
            path, enabled = f"{_INIT}/{name}", _enabled_script(host, name)
        else:
            path = not_found((path, script), path.source, path.detail)
    state: Maybe[ServiceState] = path if isinstance(path, Unknown) else not_running
    if name in running:
        state = ServiceState.ACTIVE
    return Service(name, SERVICES[name], path, unit.masked, enabled, state)


def _may_ask_systemd(service: Service) -> bool:
    return isinstance(service.state, Unknown) and not isinstance(service.path, Unknown)


def _with_state(service: Service, state: Maybe[ServiceState]) -> Service:
    if isinstance(state, Unknown) and state.reason is Reason.NOT_THERE:
        # A daemon without a process is not running, even if systemd does not know why.
        is_daemon = service.name in _COMMS and service.state == _NO_PROCESS
        state = ServiceState.INACTIVE if is_daemon else service.state
    return replace(service, state=state)


def _enabled_script(host: Host, name: str) -> Maybe[bool]:
    """Return whether a link S??NAME in the directory of a usual runlevel (3, 5) starts a script."""
    listed = [host.names(directory) for directory in ("/etc/rc3.d", "/etc/rc5.d", "/etc/rc.d/rc3.d")]
    if any(entry[:1] == "S" and entry[3:] == name for names in listed for entry in known(names, ())):
        return True
    unread = first_unread(listed)
    if unread is not None or all(isinstance(names, Unknown) for names in listed):
        return Unknown(Reason.NOT_THERE, "/etc/rc3.d") if unread is None else unread
    return False


def _running(host: Host) -> tuple[frozenset[str], Unknown]:
    """Return the services with a process, by control group or process name, and the state of the others.

    A driver container runs Fabric Manager outside of any service, so only its name identifies it.
    """
    grouped = _in_groups(host)
    names = host.names("/proc")
    pids = [name for name in known(names, ()) if name.isdecimal()][:_MAX_PROCESSES]
    comms = {known(host.read(f"/proc/{pid}/comm", 4096), "") for pid in pids}
    running = frozenset(name for name, comm in _COMMS.items() if comm in comms) | (grouped or frozenset())
    if grouped is not None or host.read("/proc/1/comm", 4096) in ("systemd", "init"):
        return running, _NO_PROCESS
    detail = "the node's processes are not visible from here (a container?)"
    return running, names if isinstance(names, Unknown) else Unknown(Reason.NOT_THERE, "/proc/1/comm", detail)


def _in_groups(host: Host) -> frozenset[str] | None:
    """Return the services with a non-empty control group; None: services have no control groups here."""
    for directory in _CGROUPS:
        if not isinstance(host.names(directory), Unknown):
            paths = {name: f"{directory}/{name}.service/cgroup.procs" for name in SERVICES}
            return frozenset(name for name, path in paths.items() if known(host.read(path), ""))
    return None


def _ask_systemd(host: Host, names: Sequence[str]) -> Maybe[dict[str, Maybe[ServiceState]]]:
    argv = ("systemctl", "show", "--property=Id,ActiveState", *(f"{name}.service" for name in names))
    answer = host.run(argv, _SECONDS)
    if isinstance(answer, Unknown):
        return answer
    states = parse_show(answer.stdout)
    if answer.exit_status != 0 and not states:
        # "System has not been booted with systemd as init system": a container.
        error = printable(" ".join(answer.stderr.split()), 120)
        return Unknown(Reason.NOT_THERE, "systemctl show", error or "systemd does not respond")
    missing = Unknown(Reason.MALFORMED, "systemctl show", "nothing about this unit")
    return {name: states.get(f"{name}.service", missing) for name in names}


def parse_show(text: str) -> dict[str, Maybe[ServiceState]]:
    """Parse unit -> state from blocks of Key=value lines, separated by empty lines (systemctl(1), show)."""
    words = {state.value: state for state in ServiceState}
    words["reloading"] = ServiceState.ACTIVE
    found: dict[str, Maybe[ServiceState]] = {}
    for block in text.split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        if "Id" in fields and "ActiveState" in fields:
            word = fields["ActiveState"].strip()
            unknown = Unknown(Reason.MALFORMED, "systemctl show", printable(word, 40))
            found[fields["Id"].strip()] = words.get(word, unknown)
    return found
