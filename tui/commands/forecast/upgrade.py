"""`gdrtop forecast --upgrade COMMAND`: what an upgrade of packages would do to GPUDirect RDMA."""

from __future__ import annotations

import sys
from typing import Any, TextIO, TypedDict

from probes.base.text import printable
from probes.base.unknown import Maybe, Unknown
from probes.host.protocol import Host
from probes.setup.forecast import exit_status
from probes.setup.upgrade.advice import UpgradeAdvice, advise
from probes.setup.upgrade.simulated_command import NoUpgradeCommand, simulated
from probes.setup.upgrade.transaction import ChangeKind, PackageChange, changes_of, parse
from probes.setup.upgrade.upgrade import Upgrade, subject_of
from probes.snapshot.examination import Examination, examine
from tui.command_line.arguments import OutputOptions, UsageError
from tui.commands.forecast.after_reboot import KernelObject, kernel_json
from tui.runtime.json_values import ExitStatus, document, host_name, object_from, write_json
from tui.runtime.printing import heading, print_lines, text_width
from widgets.setup.forecast import draw_upgrade

FROM_STDIN = "-"
_SECONDS = 60.0  # apt-get on a slow disk, zypper with many repositories
_LIMIT = 4 << 20


class _Package(TypedDict):
    name: str
    kind: ChangeKind
    old: str | None  # version; null: not installed, or the package manager does not show it
    new: str | None  # version; null: it is removed
    concerns: str | None  # what GPUDirect RDMA uses it for, such as "GPU driver"; null: nothing


class UpgradeDocument(TypedDict):
    """`gdrtop forecast --upgrade COMMAND --json`."""

    # 0 will work, 1 warnings or at risk, 2 critical findings or will not work, 3 unknown or not applicable.
    exit_status: ExitStatus
    command: str  # as it was given; empty where its output was read from stdin
    packages: tuple[_Package, ...]
    not_applicable: str  # why there is nothing to forecast; empty: there is
    forecast: KernelObject | None  # the kernel that starts then; findings include what the upgrade breaks
    assumed: tuple[str, ...]  # what the forecast takes for granted
    not_known: tuple[str, ...]  # before the boot


def write_advice(host: Host, command: str, out: TextIO, options: OutputOptions) -> int:
    """Print what an upgrade would bring, and return the exit status of the forecast with it.

    Raises:
        UsageError: the command is no upgrade, or its package manager does not answer.
    """
    changes = _given() if command == FROM_STDIN else _asked(host, command)
    if isinstance(changes, Unknown):
        why = changes.detail or changes.reason.value
        shown = printable(command, 80)
        raise UsageError(
            f"{shown!r}: no answer from the package manager ({why}); with - as the command,"
            " what it printed on the node is read from stdin"
        )
    examination = examine(host)
    advice = advise(host, examination, Upgrade("" if command == FROM_STDIN else command, changes))
    status = advice_status(advice)
    if options.json:
        write_json(advice_json(host, examination, advice), out)
        return status
    drawn = draw_upgrade(advice, text_width(out), examination.topology.labels)
    print_lines([heading(examination.node), *drawn], out, options.ascii)
    return status


def advice_status(advice: UpgradeAdvice) -> int:
    """Return 0 if it will work, 1 for warnings, 2 if it will not work, 3 if that is unknown."""
    return exit_status(advice.forecast.chosen())


def _asked(host: Host, command: str) -> Maybe[tuple[PackageChange, ...]]:
    """Ask the package manager."""
    try:
        argv = simulated(command)
    except NoUpgradeCommand as error:
        raise UsageError(f"{printable(command, 80)!r}: {error}") from error
    answer = host.run(argv, _SECONDS)
    return answer if isinstance(answer, Unknown) else changes_of(answer)


def _given() -> tuple[PackageChange, ...]:
    """Parse what a package manager has printed elsewhere, from stdin."""
    changes = parse(sys.stdin.read(_LIMIT))
    if not changes:
        forms = "apt-get --simulate, dnf --assumeno or zypper --xmlout … --dry-run"
        raise UsageError(f"--before -: stdin names no package; it must be the output of {forms}")
    return changes


def advice_json(host: Host, examination: Examination, advice: UpgradeAdvice) -> dict[str, Any]:
    """Return the JSON document."""
    kernel = advice.forecast.chosen()
    content = {
        "exit_status": advice_status(advice),
        "command": advice.upgrade.command,
        "packages": [_package_json(change) for change in advice.upgrade.changes],
        "not_applicable": advice.forecast.not_applicable,
        "forecast": None if kernel is None else kernel_json(kernel),
        "assumed": list(advice.assumed),
        "not_known": list(advice.forecast.not_known),
    }
    node = examination.node
    return document("upgrade", host_name(node), node.origin, host.wall_clock(), content)


def _package_json(change: PackageChange) -> dict[str, Any]:
    texts = {"old": change.old or None, "new": change.new or None}
    return object_from(change, _Package, concerns=subject_of(change.name) or None, **texts)
