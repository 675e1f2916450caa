"""systemd units, read from their files: where a unit is, whether it starts at boot, and its settings.

systemd.unit(5): directories by precedence, drop-ins NAME.service.d/*.conf, and the links in *.wants/ and
*.requires/ that `systemctl enable` creates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from probes.base.frozen import dataclass
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host.protocol import Host

UNIT_DIRECTORIES = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
CONFIG_DIRECTORIES = (
    "/etc/systemd",
    "/run/systemd",
    "/usr/local/lib/systemd",
    "/usr/lib/systemd",
    "/lib/systemd",
)
_VENDORS = ("/usr/lib/systemd/system", "/lib/systemd/system")
_RELATED = ("nvidia", "peermem", "peer_mem", "openibd", "mlnx", "mlx", "doca", "rdma", "gpu", "cuda")
MAX_FILES = 256
_MAX_MODULES = 16
_FILE_LIMIT = 64 * 1024


@dataclass(frozen=True)
class UnitFile:
    """One unit, as its files describe it."""

    name: str  # "openibd.service"
    path: Maybe[str]  # NOT_THERE: not installed
    masked: bool  # linked to /dev/null: cannot be started
    enabled: Maybe[bool]  # a target or unit wants it


@dataclass(frozen=True)
class UnitSetting:
    """The value of a setting, and the file that sets it."""

    value: str
    where: str


def read_units(host: Host, names: tuple[str, ...]) -> tuple[UnitFile, ...]:
    """Read the units, in the order of the names."""
    wanted = wanted_units(host)
    return tuple(_unit(host, name, wanted) for name in names)


def wanted_units(host: Host) -> Maybe[frozenset[str]]:
    """Return the names of all units that another unit wants or requires by a link."""
    found: set[str] = set()
    seen = False
    for directory in UNIT_DIRECTORIES:
        names = host.names(directory)
        if isinstance(names, Unknown):
            continue
        seen = True
        for name in [n for n in names if n.endswith((".wants", ".requires"))][:MAX_FILES]:
            found.update(known(host.names(f"{directory}/{name}"), ()))
    return frozenset(found) if seen else Unknown(Reason.NOT_THERE, UNIT_DIRECTORIES[0], "no systemd here")


def _unit(host: Host, name: str, wanted: Maybe[frozenset[str]]) -> UnitFile:
    enabled: Maybe[bool] = wanted if isinstance(wanted, Unknown) else name in wanted
    for directory in UNIT_DIRECTORIES:
        path = f"{directory}/{name}"
        target = host.link(path)
        if target == "/dev/null":
            return UnitFile(name, path, masked=True, enabled=False)
        # A link counts even if its target is elsewhere: `systemctl link`, or an alias of another unit.
        if not isinstance(target, Unknown) or not isinstance(host.size(path), Unknown):
            return UnitFile(name, path, masked=host.size(path) == 0, enabled=enabled)
    absent = Unknown(Reason.NOT_THERE, f"{UNIT_DIRECTORIES[0]}/{name}", "no such unit")
    return UnitFile(name, absent, masked=False, enabled=absent)


def unit_setting(host: Host, unit: str, section: str, key: str) -> Maybe[UnitSetting]:
    """Return a setting of a unit, including drop-ins; NOT_THERE: none of its files sets it."""
    files = [path for d in UNIT_DIRECTORIES if isinstance(host.size(path := f"{d}/{unit}"), int)][:1]
    if not files:
        return Unknown(Reason.NOT_THERE, f"{UNIT_DIRECTORIES[0]}/{unit}", "no such unit")
    return _last(host, (*files, *_drop_ins(host, UNIT_DIRECTORIES, unit)), section, key)


def manager_setting(host: Host, key: str) -> Maybe[UnitSetting]:
    """Return a setting of the system manager: system.conf and system.conf.d (systemd-system.conf(5))."""
    files = [path for d in CONFIG_DIRECTORIES if isinstance(host.size(path := f"{d}/system.conf"), int)][:1]
    return _last(host, (*files, *_drop_ins(host, CONFIG_DIRECTORIES, "system.conf")), "Manager", key)


def modprobe_lines(host: Host) -> tuple[dict[str, str], tuple[str, ...]]:
    """Find the modules that enabled services load with modprobe, and the files that could not be read.

    Module -> "/etc/systemd/system/x.service: ExecStart=/sbin/modprobe nvidia-peermem", for every unit and
    drop-in of the admin, and for vendors' units with names related to GPUs or RDMA.
    """
    found: dict[str, str] = {}
    unread: list[str] = []
    for path in _service_files(host):
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


def _service_files(host: Host) -> Iterator[str]:
    """Yield the files and drop-ins of services that start at boot."""
    wanted = known(wanted_units(host), frozenset())
    for directory in UNIT_DIRECTORIES:
        names = known(host.names(directory), ())
        if directory in _VENDORS:
            names = tuple(name for name in names if any(word in name for word in _RELATED))
        for name in names[:MAX_FILES]:
            path = f"{directory}/{name}"
            if name.removesuffix(".d") not in wanted:
                continue
            if name.endswith(".service") and isinstance(host.size(path), int):
                yield path
            elif name.endswith(".service.d"):
                files = known(host.names(path), ())[:MAX_FILES]
                yield from (f"{path}/{file}" for file in files if file.endswith(".conf"))


def _modprobed(command: str) -> tuple[str, ...]:
    """Return the modules that a command loads: the words after "modprobe" without options and parameters."""
    _, modprobe, arguments = command.partition("modprobe")
    words = re.split(r"[;&|]", arguments)[0].replace("'", " ").replace('"', " ").split() if modprobe else []
    if any(word in ("-r", "--remove") for word in words):
        return ()
    return tuple(
        word.replace("-", "_")
        for word in words[:_MAX_MODULES]
        if re.fullmatch(r"[A-Za-z0-9][\w-]{0,63}", word)
    )


def _drop_ins(host: Host, directories: tuple[str, ...], name: str) -> Iterator[str]:
    """Yield drop-ins by name; of the same name, the one in the directory with the highest precedence."""
    by_name: dict[str, str] = {}
    for directory in directories:
        below = f"{directory}/{name}.d"
        for file in known(host.names(below), ()):
            if file.endswith(".conf"):
                by_name.setdefault(file, f"{below}/{file}")
    for file in sorted(by_name)[:MAX_FILES]:
        yield by_name[file]


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
