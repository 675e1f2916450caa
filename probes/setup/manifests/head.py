"""The comments at the top of every manifest: what it is, what it was derived from, and how to use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from probes.base.origin import Source
from probes.base.text import plural, printable
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.rdma.nic_driver import NicDriver
from probes.facts.system.distribution import Distribution
from probes.facts.system.platform import PlatformFacts
from probes.queries.modules import ofed_of
from probes.setup.manifests.commented_yaml import command_line, comment_lines
from probes.setup.manifests.request import (
    DriverOwner,
    ManifestRequest,
    compute_nics,
    driver_owner,
    driver_version,
    nic_stack,
)
from probes.setup.situation import Situation

_OWNERS = {
    DriverOwner.HOST: "installed on the host",
    DriverOwner.OPERATOR: "installed by the GPU Operator",
}


def head(request: ManifestRequest, title: str, use: Sequence[str], notes: Sequence[str] = ()) -> list[str]:
    """Return the comment lines at the top: what it is, what it was derived from, how to use it, and notes.

    `use`: commands. A requirement of the path that this node does not meet is a note.
    """
    lines = comment_lines(title)
    lines += comment_lines(f"Written by gdrtop {_derived_from(request.situation)}")
    for label, value in _facts(request):
        lines += comment_lines(f"{label + ':':<12}{value}", " " * 12)
    for note in (*_open_requirements(request), *_old_peermem(request), *notes):
        lines += comment_lines(f"Note: {note}", " " * 6)
    if use:
        lines += comment_lines("Use:") + [command_line(command) for command in use]
    return lines


def _derived_from(situation: Situation) -> str:
    node = situation.examination.node
    name = known(node.platform.hostname, "?") if isinstance(node.platform, PlatformFacts) else "?"
    name, label = printable(name, 64), printable(node.origin.label, 200)
    match node.origin.source:
        case Source.SIMULATED:
            return f"from SIMULATED node {label}: an example, derived from no real machine"
        case Source.RECORDED:
            return f"from node {name}, recorded in {label}"
        case Source.TREE:
            return f"from node {name}, read from {label}"
    return f"from node {name}"


def _facts(request: ManifestRequest) -> list[tuple[str, str]]:
    situation, node = request.situation, request.situation.examination.node
    gpus = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    models = Counter(printable(gpu.name, 60) for gpu in gpus)
    nics = compute_nics(situation)
    layers = Counter(known(nic.ports[0].link_layer, "?") if nic.ports else "?" for nic in nics)
    others = len(node.rdma.devices) - len(nics) if isinstance(node.rdma, RdmaFacts) else 0
    names = ", ".join(printable(nic.name, 32) for nic in nics[:16])
    system = situation.distribution
    name = system.name if isinstance(system, Distribution) else _pretty_name(situation)
    driver = driver_version(situation) or "none seen"
    flavor = node.gpus.driver.flavor if isinstance(node.gpus, GpuFacts) else node.gpus
    modules = "" if isinstance(flavor, Unknown) else f", {flavor.value} kernel modules"
    owner = "" if isinstance(request.driver, Unknown) else f"; {_OWNERS[request.driver]}"
    owner += "" if request.driver == driver_owner(situation) else " (chosen with --driver)"
    stack = nic_stack(situation)
    advice = request.choice.recommended
    verb = "is" if others == 1 else "are"
    idle = f"; {plural(others, 'other NIC')} {verb} not for compute" if others > 0 else ""
    given = f", chosen with --path; gdrtop recommends {advice.value if advice else 'none'}"
    return [
        ("GPUs", ", ".join(f"{count} × {model}" for model, count in models.items()) or "none seen"),
        ("GPU driver", f"{driver}{modules}{owner}"),
        (
            "NICs",
            f"{', '.join(f'{count} × {printable(layer, 20)}' for layer, count in layers.items()) or 'none'}"
            f"{f': {names}' if names else ''}{idle}",
        ),
        ("NIC driver", "unknown" if isinstance(stack, Unknown) else _release(situation, stack.value)),
        ("System", f"{printable(name, 80)}, kernel {known(node.kernel_release, 'unknown')}"),
        ("Path", f"{request.path.value}{'' if request.path is advice else given}: {request.choice.reason}"),
    ]


def _release(situation: Situation, stack: str) -> str:
    """Return the NIC driver's release with the name of its stack, which most releases begin with."""
    driver = situation.nic_driver
    version = driver.version if isinstance(driver, NicDriver) else ofed_of(situation.examination)
    release = printable(known(version, ""), 60)
    return release if release.startswith(stack) else f"{stack} {release}".rstrip()


def _pretty_name(situation: Situation) -> str:
    platform = situation.examination.node.platform
    return known(platform.distribution, "unknown") if isinstance(platform, PlatformFacts) else "unknown"


def _open_requirements(request: ManifestRequest) -> list[str]:
    """Return the requirements of the chosen path that this node does not meet, or may not meet."""
    notes = []
    for state in request.choice.paths:
        for row in state.requirements if state.path is request.path else ():
            if row.met is False:
                notes.append(f"not met on this node: {row.name} ({row.evidence})")
            elif isinstance(row.met, Unknown):
                notes.append(f"unknown on this node: {row.name} ({row.met})")
    return notes


def _old_peermem(request: ManifestRequest) -> list[str]:
    """Return what still loads nvidia_peermem at boot on a node that uses DMA-BUF."""
    if request.path is not GdrPath.DMABUF:
        return []
    return [
        f"an old configuration still loads nvidia_peermem, which DMA-BUF does not need: {old.source}:"
        f" {old.value}"
        for old in request.choice.old_peermem
    ]
