"""Every command that a simulated node supports, by name, and those that need no file of their own.

Not supported, because gdrtop never runs them: dkms, git, mlxconfig, mlxfwreset. A reboot is
SimulatedHost's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from probes.base.text import printable
from probes.base.unknown import Unknown
from probes.facts.system.cpu import POLICIES
from probes.facts.system.tool_names import PERFTEST
from probes.facts.system.tools import DIRECTORIES
from probes.host.protocol import CommandOutput, Host
from probes.simulation.commands import coreutils, devices, modprobe, nvidia, packages, systemctl
from probes.simulation.commands.command_result import (
    BRIEFLY,
    CommandResult,
    Handler,
    Invocation,
    done,
    failed,
    split_options,
    unsupported,
)
from probes.simulation.commands.coreutils import write
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.loading import MODULES_DISABLED
from probes.simulation.node.modules.modules import Modinfo, end_programs, write_index
from probes.simulation.node.system.system import GRUB_CONFIG

# Command -> the file without which the node does not have it, and what it prints.
_BOOT_FILES = {
    "update-grub": (GRUB_CONFIG, "Generating grub configuration file ...\ndone"),
    "grub2-mkconfig": ("/boot/grub2/grub.cfg", "Generating grub configuration file ...\ndone"),
    "update-initramfs": ("/usr/sbin/update-initramfs", "Generating boot image of {kernel}"),
    "dracut": ("/usr/bin/dracut", "Generating boot image of {kernel}"),
}
_BOOT_FILE_SECONDS = 20.0
_EVENTS = ("trigger", "settle", "control")
# Read-only commands with the only arguments that the tree can answer; others accept any arguments.
_READ_ONLY: dict[str, tuple[tuple[str, ...], ...]] = {
    "ofed_info": (("-s",),),
    "nv-fabricmanager": (("--version",),),
    "rdma_topo": (("check",),),
    **dict.fromkeys(PERFTEST, (("--version",),)),
}


def _sysctl(call: Invocation) -> CommandResult:
    """`sysctl -w KEY=VALUE…`."""
    _, words = split_options(call.args)
    lines = []
    for word in words:
        key, equals, value = word.partition("=")
        path = f"/proc/sys/{key.strip().replace('.', '/')}"
        if not equals:
            lines.append(f'sysctl: "{word}" must be of the form name=value')
        elif path not in call.tree.files:
            lines.append(f"sysctl: cannot stat {path}: No such file or directory")
        elif path == MODULES_DISABLED and call.tree.text(path).strip() == "1" and value.strip() != "1":
            lines.append(f'sysctl: setting key "{key.strip()}": Invalid argument')
        else:
            write(call.tree, path, f"{value.strip()}\n")
            lines.append(f"{key.strip()} = {value.strip()}")
    has_failed = not words or any(line.startswith("sysctl: ") for line in lines)
    return CommandResult(tuple(lines), int(has_failed), 0.1)


def _cpupower(call: Invocation) -> CommandResult:
    """`cpupower frequency-set -g GOVERNOR` or `-u KHZ`, for all CPUs."""
    files = {"-g": "scaling_governor", "-u": "scaling_max_freq"}
    if len(call.args) != 3 or call.args[0] != "frequency-set" or call.args[1] not in files:
        return unsupported(call)
    paths = [
        path
        for path in call.tree.files
        if path.startswith(f"{POLICIES}/") and path.endswith(files[call.args[1]])
    ]
    for path in paths:
        write(call.tree, path, f"{call.args[2]}\n")
    return done(*(f"Setting cpu: {number}" for number in range(len(paths))))


def _udevadm(call: Invocation) -> CommandResult:
    """Accept events; they create no device files: devtmpfs creates them, udev sets owner and mode."""
    if call.args[:1] and call.args[0] in _EVENTS:
        return done(seconds=0.5)
    return unsupported(call)


def _depmod(call: Invocation) -> CommandResult:
    """`depmod -a [RELEASE]`: write modules.dep for the existing module files."""
    _, words = split_options(call.args)
    running = call.tree.description.kernel
    release = words[0] if words else running
    directory = f"/lib/modules/{release}"
    if not re.fullmatch(r"[0-9][A-Za-z0-9._+~-]*", release) or directory not in call.tree.directories:
        return failed(
            f"depmod: ERROR: could not open directory {directory}: No such file or directory",
            "depmod: FATAL: could not search modules: No such file or directory",
        )
    modinfo = call.tree.commands.get("modinfo")
    if release == running and isinstance(modinfo, Modinfo):
        write_index(call.tree, modinfo.files)
    return done(seconds=3.0)


def _journalctl(call: Invocation) -> CommandResult:
    """`journalctl -u UNIT`, `-k`: messages of services and the kernel since the node started."""
    options, _ = split_options(call.args, valued="un")
    unit = (options.get("-u") or options.get("--unit") or "").removesuffix(".service")
    if unit:
        head = f"{call.tree.description.hostname} {unit}"
        lines = [f"{head}: {line}" for line in call.tree.journal.get(unit, ())]
    elif options.keys() & {"-k", "--dmesg"}:
        lines = [line.rstrip("\n").partition(">")[2] for line in call.tree.kernel_log]
    else:
        return unsupported(call)
    return done(*(lines or ["-- No entries --"]), seconds=0.3)


def _rdma(call: Invocation) -> CommandResult:
    """`rdma system show`: all namespaces share the devices."""
    if call.args not in (("system", "show"), ("system",)):
        return unsupported(call)
    return done("netns shared copy-on-fork on")


def _boot_file(call: Invocation) -> CommandResult:
    """Write nothing: a simulated boot takes its command line from the settings, and modules from the disk."""
    needed, line = _BOOT_FILES[call.name]
    if not call.tree.is_there(needed):
        return unsupported(call)
    lines = line.format(kernel=call.tree.description.kernel).split("\n")
    return done(*lines, seconds=_BOOT_FILE_SECONDS)


def _scontrol(call: Invocation) -> CommandResult:
    """`scontrol update`: drain this node, whose jobs then end, and let jobs start again."""
    node = call.tree.description
    if not node.system.slurm or call.args[:1] != ("update",):
        return unsupported(call)
    fields = dict(word.partition("=")[::2] for word in call.args[1:])
    if fields.pop("NodeName", "") != node.hostname:
        return failed("slurm_update error: Invalid node name specified")
    state, reason = fields.pop("State", ""), fields.pop("Reason", "")
    if fields or state not in ("DRAIN", "UNDRAIN", "RESUME") or bool(reason) != (state == "DRAIN"):
        return unsupported(call)
    _drain(call.tree, reason if state == "DRAIN" else None)
    return done()


def _drain(tree: Tree, reason: str | None) -> None:
    """Let no further job start, and the present ones end; None: let jobs start again."""
    tree.drained_for = reason
    if reason is not None:
        end_programs(tree)


def _kubectl(call: Invocation) -> CommandResult:
    """`kubectl cordon NODE`, after which its jobs end, and `uncordon`; also `oc adm`."""
    node, words = call.tree.description, [word for word in call.args if word != "adm"]
    cluster = node.system.cluster
    if cluster is None or call.name != cluster.tool or words[:1] not in (["cordon"], ["uncordon"]):
        return _query(call) or unsupported(call)
    if words[1:] != [node.hostname]:
        return failed("error: the node is not in this cluster")
    _drain(call.tree, "" if words[0] == "cordon" else None)
    return done(f"node/{node.hostname} {words[0]}ed")


def _query(call: Invocation) -> CommandResult | None:
    """Answer a read-only command like the probes are answered; None if the node does not have it."""
    answer = call.tree.commands.get(call.name)
    accepted = _READ_ONLY.get(call.name)
    if answer is None or (accepted is not None and call.args not in accepted):
        return None
    text = answer((call.name, *call.args), call.seconds)
    if isinstance(text, Unknown):
        return None
    if isinstance(text, CommandOutput):
        lines = (text.stdout + text.stderr).splitlines()
        return CommandResult(tuple(lines), text.exit_status, BRIEFLY)
    if call.name == "modinfo" and not text:
        return failed(*(f"modinfo: ERROR: Module {word} not found." for word in call.args))
    lines = text.splitlines()
    if call.name == "dmesg" and not {"-r", "--raw"} & set(call.args):
        lines = [line.partition(">")[2] for line in lines]
    return done(*lines)


_OTHERS = {
    "sysctl": _sysctl,
    "cpupower": _cpupower,
    "udevadm": _udevadm,
    "depmod": _depmod,
    "journalctl": _journalctl,
    "rdma": _rdma,
    **dict.fromkeys(_BOOT_FILES, _boot_file),
    "scontrol": _scontrol,
    **dict.fromkeys(("kubectl", "oc"), _kubectl),
}

HANDLERS: Mapping[str, Handler] = {
    **modprobe.COMMANDS,
    **systemctl.COMMANDS,
    **devices.COMMANDS,
    **nvidia.COMMANDS,
    **coreutils.COMMANDS,
    **packages.COMMANDS,
    **_OTHERS,
}


def perform(host: Host, tree: Tree, argv: Sequence[str], stdin: str, seconds: float) -> CommandResult:
    """Run a command and change the tree like a real node would change."""
    result = _perform(host, tree, argv, stdin, seconds)
    lines = (printable(part) for line in result.lines for part in line.split("\n"))
    return replace(result, lines=tuple(lines))


def _perform(host: Host, tree: Tree, argv: Sequence[str], stdin: str, seconds: float) -> CommandResult:
    if not argv:
        return unsupported("empty command")
    directory, slash, name = argv[0].rpartition("/")
    if slash and directory not in DIRECTORIES:
        return unsupported(argv[0])
    call = Invocation(host, tree, name, tuple(argv[1:]), stdin, seconds)
    if (handler := HANDLERS.get(name)) is not None:
        return handler(call)
    return _query(call) or unsupported(argv[0])
