"""Settings of modprobe and of modules loaded at boot.

Files are found and read in the same way as kmod (libkmod-config.c, modprobe.d(5)) and systemd
(modules-load.d(5)) do it.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator
from dataclasses import field
from fnmatch import fnmatchcase
from itertools import takewhile

from probes.base.frozen import frozen
from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.services import CONFIG_ROOTS
from probes.host.protocol import Host

MODPROBE_DIRECTORIES = tuple(f"{root}/modprobe.d" for root in CONFIG_ROOTS)
LOAD_DIRECTORIES = tuple(f"{root}/modules-load.d" for root in CONFIG_ROOTS)
MAX_FILES = 512
_MAX_SOFTDEPS = 64
_DIRECTIVES = ("blacklist", "install", "alias", "softdep", "options")
_END_OF_COMMAND = re.compile(r"[;&|]+")
_NOTHING = ("false", "true", ":")
CMDLINE = "/proc/cmdline"


@frozen
class InstallLine:
    """A line `install PATTERN COMMAND`: the command runs instead of loading a module that matches."""

    pattern: str
    command: str
    where: str  # "/etc/modprobe.d/x.conf:3"

    @property
    def text(self) -> str:
        """Return the line as it is in its file."""
        return f"install {self.pattern} {self.command}"

    @property
    def loads_nothing(self) -> bool:
        """Return whether the command is false(1) or true(1), which prevents loading."""
        program = next(iter(self.command.split(maxsplit=1)), "")
        return program.rpartition("/")[2] in _NOTHING

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@frozen
class ModprobeConfig:
    """The lines of modprobe.d that prevent or cause loading, in order of precedence."""

    blacklist: dict[str, str] = field(default_factory=dict)  # module -> "/etc/modprobe.d/x.conf:3"
    install: tuple[InstallLine, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()  # (pattern, module)
    softdeps: dict[str, str] = field(default_factory=dict)
    """Module that another one pulls in -> "/etc/modprobe.d/x.conf:3: softdep nvidia post: nvidia_peermem"."""
    options: dict[str, dict[str, str]] = field(default_factory=dict)  # module -> its parameters


@frozen
class BootBlacklist:
    """Modules that the kernel's command line blacklists."""

    modprobe: tuple[str, ...] = ()  # modprobe.blacklist=: as `blacklist` in modprobe.d
    kernel: tuple[str, ...] = ()  # module_blacklist=: the kernel refuses them in any case


@frozen
class LoadingRules:
    """Everything apart from the module itself that decides whether it is loaded."""

    config: ModprobeConfig
    boot: BootBlacklist
    at_boot: dict[str, str]  # module -> the file that names it
    unread: tuple[str, ...] = ()  # existing files that could not be read

    def blacklisted(self, module: str) -> str | None:
        """Return the strongest line that blacklists the module."""
        if module in self.boot.kernel:
            return f"{CMDLINE}: module_blacklist={module}"
        if module in self.config.blacklist:
            return self.config.blacklist[module]
        return f"{CMDLINE}: modprobe.blacklist={module}" if module in self.boot.modprobe else None

    def install_line(self, module: str) -> InstallLine | None:
        """Return the first line that matches, which is the one used (kmod_module_get_install_commands)."""
        return next((line for line in self.config.install if fnmatchcase(module, line.pattern)), None)

    def file_names(self, modules: Iterable[str]) -> dict[str, str]:
        """Return the names of the .ko files of the modules whose files are named otherwise."""
        names = {module: self.file_name(module) for module in modules}
        return {module: name for module, name in names.items() if name != module}

    def file_name(self, module: str) -> str:
        """Return the name of the .ko that `modprobe MODULE` loads, with underscores.

        A line `alias` comes first, then the module's line `install` (libkmod-module.c,
        kmod_module_new_from_lookup and kmod_module_probe_insert_module). Aliases of modules.alias are left
        out: the modules that gdrtop looks for have none of their own name.
        """
        aliases = (target for pattern, target in self.config.aliases if fnmatchcase(module, pattern))
        target = next(aliases, module)
        line = self.install_line(target)
        return (None if line is None else loaded_by(line.command)) or target


def loaded_by(command: str) -> str | None:
    """Return the module that the command of an install line loads; None: the command shows none.

    It does so with `modprobe -i`, which runs no install line again. Debian's driver is named like this:
    `install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-open-uvm $CMDLINE_OPTS`.
    """
    for single in _END_OF_COMMAND.split(command):
        program, *words = single.split() or [""]
        options = list(takewhile(lambda word: word.startswith("-"), words))
        ignores = any(
            option == "--ignore-install" or (not option.startswith("--") and "i" in option)
            for option in options
        )
        if program.rpartition("/")[2] == "modprobe" and ignores and len(words) > len(options):
            return _underscored(words[len(options)])
    return None


def read_rules(host: Host, cmdline: Maybe[str]) -> LoadingRules:
    """Read the rules in force, and which files could not be read."""
    configs: list[ModprobeConfig] = []
    unread: list[str] = []
    for path, text in _files(host, MODPROBE_DIRECTORIES):
        if isinstance(text, Unknown):
            unread.append(printable(path))
        else:
            configs.append(parse_modprobe(text, printable(path)))
    boot = BootBlacklist() if isinstance(cmdline, Unknown) else parse_cmdline(cmdline)
    at_boot: dict[str, str] = {}
    for path, text in _load_files(host):
        if isinstance(text, Unknown):
            unread.append(printable(path))
            continue
        for module in parse_load_list(text):
            at_boot.setdefault(module, printable(path))
    options: dict[str, dict[str, str]] = {}
    for module, parameters in (item for each in configs for item in each.options.items()):
        options.setdefault(module, {}).update(parameters)
    config = ModprobeConfig(
        dict(ChainMap(*(each.blacklist for each in configs))),  # the first line about a module counts
        tuple(line for each in configs for line in each.install),
        tuple(alias for each in configs for alias in each.aliases),
        dict(ChainMap(*(each.softdeps for each in configs))),
        options,
    )
    return LoadingRules(config, boot, at_boot, tuple(unread))


def parse_modprobe(text: str, path: str) -> ModprobeConfig:
    """Parse the `blacklist`, `install`, `alias`, `softdep` and `options` lines of one file.

    Of `alias`, those of a device (`pci:v000010DE…`) are left out.
    """
    blacklist: dict[str, str] = {}
    install: list[InstallLine] = []
    aliases: list[tuple[str, str]] = []
    softdeps: dict[str, str] = {}
    options: dict[str, dict[str, str]] = {}
    for number, line in _logical_lines(text):
        if not any(directive in line for directive in _DIRECTIVES):
            continue
        words = line.split(maxsplit=2)
        if line.startswith("#") or len(words) < 2:
            continue
        module = _underscored(words[1])
        if words[0] == "blacklist":
            blacklist.setdefault(module, f"{path}:{number}")
        elif words[0] == "install" and len(words) == 3 and len(module) <= 256:
            install.append(InstallLine(module, printable(words[2].strip(), 256), f"{path}:{number}"))
        elif words[0] == "alias" and len(words) == 3 and len(module) <= 256 and ":" not in module:
            aliases.append((module, _underscored(words[2].split()[0])[:256]))
        elif words[0] == "softdep" and len(words) == 3 and len(module) <= 256:
            where = printable(f"{path}:{number}: softdep {module} {words[2].strip()}", 256)
            for name in [word for word in words[2].split()[:_MAX_SOFTDEPS] if not word.endswith(":")]:
                softdeps.setdefault(_underscored(name)[:256], where)
        elif words[0] == "options" and len(words) == 3:
            pairs = (word.partition("=")[::2] for word in words[2].split())
            options.setdefault(module, {}).update((_underscored(name), value) for name, value in pairs)
    return ModprobeConfig(blacklist, tuple(install), tuple(aliases), softdeps, options)


def parse_cmdline(cmdline: str) -> BootBlacklist:
    """Parse `modprobe.blacklist=a,b` and `module_blacklist=a,b` of the kernel's command line.

    modprobe accepts names with dashes or underscores and adds up all its options. The kernel compares with
    underscores only and uses its last option (kernel/module/main.c, blacklisted).
    """
    modprobe: list[str] = []
    kernel: tuple[str, ...] = ()
    for word in cmdline.replace('"', "").split():
        key, _, value = word.partition("=")
        names = tuple(name for name in value.split(",") if name)
        if key == "modprobe.blacklist":
            modprobe.extend(_underscored(name) for name in names)
        elif _underscored(key) == "module_blacklist":
            kernel = names
    return BootBlacklist(tuple(modprobe), kernel)


def parse_load_list(text: str) -> tuple[str, ...]:
    """Parse a file of modules-load.d or /etc/modules: one module per line, followed by options."""
    lines = (line.strip() for line in text.split("\n"))
    return tuple(_underscored(line.split(maxsplit=1)[0]) for line in lines if line and line[0] not in "#;")


def _underscored(name: str) -> str:
    return name.replace("-", "_")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, joined where a line ends in a backslash (comments too)."""
    joined, first = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if joined:
        yield first, joined


def _files(host: Host, directories: tuple[str, ...]) -> Iterator[tuple[str, Maybe[str]]]:
    """Yield the files `*.conf` sorted by name; the earlier directory wins if a name exists twice."""
    chosen: dict[str, str] = {}
    for directory in directories:
        names = host.names(directory)
        if isinstance(names, Unknown):
            if names.reason is not Reason.NOT_THERE:
                yield directory, names
            continue
        for name in names:
            if name.endswith(".conf") and not name.startswith("."):
                chosen.setdefault(name, f"{directory}/{name}")
    for number, name in enumerate(sorted(chosen)):
        path = chosen[name]
        if number < MAX_FILES:
            yield path, _text(host, path)
        else:
            yield path, Unknown(Reason.MALFORMED, path, f"more than {MAX_FILES} files")


def _load_files(host: Host) -> Iterator[tuple[str, Maybe[str]]]:
    yield from _files(host, LOAD_DIRECTORIES)
    debian = _text(host, "/etc/modules")
    if not isinstance(debian, Unknown) or debian.reason is not Reason.NOT_THERE:
        yield "/etc/modules", debian
    # rdma-load-modules@.service of rdma-core loads these when an RDMA device appears.
    yield from _files(host, ("/etc/rdma/modules",))


def _text(host: Host, path: str) -> Maybe[str]:
    """Read a file's text without stripping it, so that line numbers are correct."""
    content = host.read_bytes(path)
    if isinstance(content, Unknown):
        # A link to /dev/null masks a file of the distribution (modules-load.d(5)); a tree has no /dev/null.
        return "" if host.link(path) == "/dev/null" else content
    return printable_lines(content.decode("utf-8", errors="replace"))
