"""systemd's units, and the services of GPUs and RDMA: installed, started at boot, running, failed.

Unit files and processes answer most questions. systemctl runs once, for installed services without a process:
a oneshot service (openibd) is active without one, and only systemd knows about failures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, not_found
from probes.host.protocol import Host

# systemd units, read from their files: where a unit is, whether it starts at boot, and its settings.
#
# systemd.unit(5): directories by precedence, drop-ins NAME.service.d/*.conf, and the links in *.wants/ and
# *.requires/ that `systemctl enable` creates.

CONFIG_ROOTS = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
UNIT_DIRECTORIES = tuple(f"{root}/systemd/system" for root in CONFIG_ROOTS)
CONFIG_DIRECTORIES = tuple(f"{root}/systemd" for root in CONFIG_ROOTS)
_VENDORS = ("/usr/lib/systemd/system", "/lib/systemd/system")
_RELATED = ("nvidia", "peermem", "peer_mem", "openibd", "mlnx", "mlx", "doca", "rdma", "gpu", "cuda")
MAX_FILES = 256
_MAX_MODULES = 16
_FILE_LIMIT = 64 * 1024


@frozen
class UnitFile:
    """One unit, as its files describe it."""

    name: str  # "openibd.service"
    path: Maybe[str]  # NOT_THERE: not installed
    masked: bool  # linked to /dev/null: cannot be started
    enabled: Maybe[bool]  # a target or unit wants it


@frozen
class WantedUnits:
    """The units that another unit wants or requires by a link."""

    names: frozenset[str]
    unread: Unknown | None  # of a directory that may have more links; NOT_THERE: no systemd

    def wants(self, name: str) -> Maybe[bool]:
        """Return whether another unit wants this one."""
        return True if name in self.names else False if self.unread is None else self.unread


@frozen
class UnitSetting:
    """The value of a setting, and the file that sets it."""

    value: str
    where: str


def read_units(host: Host, names: tuple[str, ...]) -> tuple[UnitFile, ...]:
    """Read the units, in the order of the names."""
    wanted = wanted_units(host)
    return tuple(_unit(host, name, wanted) for name in names)


def wanted_units(host: Host) -> WantedUnits:
    """Find the units that another unit wants or requires by a link."""
    found: set[str] = set()
    answers: list[Maybe[tuple[str, ...]]] = []
    seen = False
    for directory in UNIT_DIRECTORIES:
        names = host.names(directory)
        answers.append(names)
        if isinstance(names, Unknown):
            continue
        seen = True
        for name in [n for n in names if n.endswith((".wants", ".requires"))][:MAX_FILES]:
            answers.append(host.names(f"{directory}/{name}"))
            found.update(known(answers[-1], ()))
    unread = first_unread(answers)
    if unread is None and not seen:
        unread = Unknown(Reason.NOT_THERE, UNIT_DIRECTORIES[0], "systemd not found")
    return WantedUnits(frozenset(found), unread)


def _unit(host: Host, name: str, wanted: WantedUnits) -> UnitFile:
    sizes: list[Maybe[int]] = []
    for directory in UNIT_DIRECTORIES:
        path = f"{directory}/{name}"
        target = host.link(path)
        if target == "/dev/null":
            return UnitFile(name, path, masked=True, enabled=False)
        size = host.size(path)
        # A link counts even if its target is elsewhere: `systemctl link`, or an alias of another unit.
        if not isinstance(target, Unknown) or not isinstance(size, Unknown):
            unread = first_unread(sizes)  # a unit there would come first
            enabled = wanted.wants(name) if unread is None else unread
            return UnitFile(name, path, masked=size == 0 and unread is None, enabled=enabled)
        sizes.append(size)
    absent = not_found(sizes, f"{UNIT_DIRECTORIES[0]}/{name}", "no such unit")
    return UnitFile(name, absent, masked=False, enabled=absent)


def unit_setting(host: Host, unit: str, section: str, key: str) -> Maybe[UnitSetting]:
    """Return a setting of a unit, including drop-ins; NOT_THERE: none of its files sets it."""
    sizes = {path: host.size(path) for path in (f"{directory}/{unit}" for directory in UNIT_DIRECTORIES)}
    if all(isinstance(size, Unknown) for size in sizes.values()):
        return not_found(sizes.values(), f"{UNIT_DIRECTORIES[0]}/{unit}", "no such unit")
    return _setting(host, sizes, UNIT_DIRECTORIES, unit, section, key)


def manager_setting(host: Host, key: str) -> Maybe[UnitSetting]:
    """Return a setting of the system manager: system.conf and system.conf.d (systemd-system.conf(5))."""
    name = "system.conf"
    sizes = {f"{directory}/{name}": host.size(f"{directory}/{name}") for directory in CONFIG_DIRECTORIES}
    return _setting(host, sizes, CONFIG_DIRECTORIES, name, "Manager", key)


def _setting(
    host: Host, sizes: dict[str, Maybe[int]], directories: tuple[str, ...], name: str, section: str, key: str
) -> Maybe[UnitSetting]:
    """Return a setting of the first of the files with these sizes and of its drop-ins."""
    files = [path for path, size in sizes.items() if not isinstance(size, Unknown)][:1]
    before = [size for path, size in sizes.items() if path not in files]
    drop_ins, unread = _drop_ins(host, directories, name)
    unread = first_unread((*before, unread))
    return _last(host, (*files, *drop_ins), section, key) if unread is None else unread


def modprobe_lines(host: Host) -> tuple[dict[str, str], tuple[str, ...]]:
    """Find the modules that enabled services load with modprobe, and what could not be read of them.

    Module -> "/etc/systemd/system/x.service: ExecStart=/sbin/modprobe nvidia-peermem", for every unit and
    drop-in of the admin, and for vendors' units with names related to GPUs or RDMA.
    """
    found: dict[str, str] = {}
    unread: list[str] = []
    for path in _service_files(host, unread):
        text = host.read(path, _FILE_LIMIT)
        if isinstance(text, Unknown):
            unread += [] if text.reason is Reason.NOT_THERE else [printable(path)]
            continue
        if "modprobe" not in text:
            continue
        for key in ("ExecStartPre", "ExecStart", "ExecStartPost"):
            for command in parse_unit(text, "Service", key):
                for module in _modprobed(command):
                    found.setdefault(module, printable(f"{path}: {key}={command}", 256))
    return found, tuple(unread)


def _service_files(host: Host, unread: list[str]) -> Iterator[str]:
    """Yield the files and drop-ins of services that start at boot; add what cannot be read to `unread`."""
    wanted = wanted_units(host)
    if wanted.unread is not None and wanted.unread.reason is not Reason.NOT_THERE:
        unread.append(wanted.unread.source)
    for directory in UNIT_DIRECTORIES:
        names = _names(host, directory, unread)
        if directory in _VENDORS:
            names = tuple(name for name in names if any(word in name for word in _RELATED))
        for name in names[:MAX_FILES]:
            path = f"{directory}/{name}"
            if name.removesuffix(".d") not in wanted.names:
                continue
            if name.endswith(".service"):
                size = host.size(path)
                if not isinstance(size, Unknown):
                    yield path
                elif size.reason is not Reason.NOT_THERE:
                    unread.append(printable(path))
            elif name.endswith(".service.d"):
                files = _names(host, path, unread)[:MAX_FILES]
                yield from (f"{path}/{file}" for file in files if file.endswith(".conf"))


def _modprobed(command: str) -> tuple[str, ...]:
    """Return the modules that a command loads: the words after "modprobe" without options and parameters."""
    _, modprobe, arguments = command.partition("modprobe")
    words = re.split(r"[;&|]", arguments)[0].replace("'", " ").replace('"', " ").split() if modprobe else []
    if any(word in ("-r", "--remove") for word in words):
        return ()
    names = filter(re.compile(r"[A-Za-z0-9][\w-]{0,63}").fullmatch, words[:_MAX_MODULES])
    return tuple(name.replace("-", "_") for name in names)


def _names(host: Host, directory: str, unread: list[str]) -> tuple[str, ...]:
    names = host.names(directory)
    if isinstance(names, Unknown) and names.reason is not Reason.NOT_THERE:
        unread.append(printable(directory))
    return known(names, ())


def _drop_ins(host: Host, directories: tuple[str, ...], name: str) -> tuple[list[str], Unknown | None]:
    """Return the drop-ins that count, by name, and why a directory could not be read."""
    by_name: dict[str, str] = {}
    listed = {below: host.names(below) for below in (f"{directory}/{name}.d" for directory in directories)}
    for below, names in listed.items():
        for file in known(names, ()):
            if file.endswith(".conf"):
                by_name.setdefault(file, f"{below}/{file}")
    return [by_name[file] for file in sorted(by_name)[:MAX_FILES]], first_unread(listed.values())


def _last(host: Host, paths: tuple[str, ...], section: str, key: str) -> Maybe[UnitSetting]:
    found: UnitSetting | None = None
    unread: Unknown | None = None
    for path in paths:
        text = host.read(path, _FILE_LIMIT)
        if isinstance(text, Unknown):
            unread = text
            continue
        for value in parse_unit(text, section, key):
            # An empty value resets the setting.
            found = UnitSetting(printable(value, 128), printable(path)) if value else None
    if unread is not None:  # it might override the value
        return unread
    where = paths[0] if paths else key
    return Unknown(Reason.NOT_THERE, where, f"{key} is not set") if found is None else found


def parse_unit(text: str, section: str, key: str) -> tuple[str, ...]:
    """Parse the values of a key in one section of a unit file, in order (systemd.syntax(7))."""
    values = []
    here = ""
    for raw in text.replace("\\\n", " ").split("\n"):
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            here = line[1:-1]
        elif here == section and not line.startswith(("#", ";")):
            name, equals, value = line.partition("=")
            if equals and name.strip() == key:
                values.append(value.strip())
    return tuple(values)


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
    unread = [service for service in services.values() if isinstance(service.state, Unknown)]
    idle = [service.name for service in unread if not isinstance(service.path, Unknown)]
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
