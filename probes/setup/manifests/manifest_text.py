"""The text of a manifest: the comments at its top, and YAML with comments.

The comments at the top say what it is, what it was derived from, and how to use it. PyYAML cannot write
comments before keys, but says where each key is.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import yaml

from probes.base.data_files import read_toml_once
from probes.base.frozen import frozen
from probes.base.text import plural, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage
from probes.facts.gpu.generations import BLACKWELL, TURING, is_before
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath
from probes.facts.node import derivation
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.rdma.nic_driver import NicDriver, NicStack
from probes.facts.system.kubernetes import GpuOperator
from probes.facts.system.packages import Distribution, Family
from probes.queries.modules import has_efa_only, ofed_of, plugin_only_driver
from probes.setup.situation import PathChoice, Situation, choose_path
from probes.snapshot.nic_roles import Role, roles_of

# What every manifest is made from: the node, the path, and who installs the drivers.

_VERSION = re.compile(r"\d{3,4}\.\d{1,3}(?:\.\d{1,3})?", re.ASCII)


class DriverOwner(Enum):
    """Who installs the NVIDIA driver on the nodes."""

    HOST = "host"
    OPERATOR = "operator"


@frozen
class Refused:
    """Why there is no such manifest for this node and path, as a sentence without a full stop."""

    reason: str
    is_impossible: bool = False  # no path can ever work on this node


def _text(table: str, id_: str, words: Mapping[str, object]) -> str:
    """Return a text of a table of manifests.toml."""
    return str(read_toml_once(__package__, "manifests.toml")[table][id_].format(**words))


def refused(id_: str, **words: object) -> Refused:
    """Return why there is no manifest, by its name in manifests.toml."""
    return Refused(_text("refused", id_, words), is_impossible=id_ == "impossible")


def note(id_: str, **words: object) -> str:
    """Return a note of manifests.toml."""
    return _text("note", id_, words)


@frozen
class ManifestRequest:
    """One node and the choices of the admin."""

    situation: Situation
    choice: PathChoice
    path: GdrPath
    driver: Maybe[DriverOwner]
    role: str = "worker"  # MachineConfig: the pool
    talos_version: tuple[int, int] | None = None  # None: not given and not read


def make_request(
    situation: Situation,
    path: GdrPath | None = None,
    driver: DriverOwner | None = None,
    role: str = "worker",
    talos_version: tuple[int, int] | None = None,
) -> ManifestRequest | Refused:
    """Fill in what the admin did not choose: the recommended path, and who installs the driver here."""
    choice = choose_path(situation.examination)
    if choice.is_impossible:
        return refused("impossible", why=choice.reason)
    if (chosen := path or choice.recommended) is None:
        return refused("no-path", why=choice.reason)
    if reason := _excluded(situation, chosen):
        return Refused(reason)
    owner = driver or driver_owner(situation)
    return ManifestRequest(situation, choice, chosen, owner, role, talos_version or read_talos(situation))


def _excluded(situation: Situation, path: GdrPath) -> str:
    """Return why this node's hardware or system can never use a path, or ""."""
    gpus = situation.examination.node.gpus
    found = gpus.gpus if isinstance(gpus, GpuFacts) else ()
    old = [is_before(gpu.compute_capability, TURING) for gpu in found]
    if path is GdrPath.DMABUF and old and all(old):
        return "DMA-BUF needs compute capability 7.5 or newer; the GPUs of this node are older"
    if path is not GdrPath.CXI and plugin_only_driver(situation.examination).startswith("cxi"):
        return "the NICs are Slingshot, which uses libfabric; leave out --path"
    if path is GdrPath.PEERMEM:
        if has_efa_only(situation.examination):
            return "the NICs are EFA, which does not use nvidia-peermem"
        if family_of(situation) is Family.TALOS:
            return "Talos has no OFED, so nvidia-peermem cannot register there; use --path dmabuf"
    return ""


def family_of(situation: Situation) -> Family | None:
    """Return the distribution's family; None: unknown."""
    found = situation.examination.distribution
    return found.family if isinstance(found, Distribution) else None


def read_talos(situation: Situation) -> tuple[int, int] | None:
    """Return the version of Talos on this node; None: it is another system."""
    found = situation.examination.distribution
    if not isinstance(found, Distribution) or found.family is not Family.TALOS:
        return None
    match = re.match(r"v?(\d{1,3})\.(\d{1,3})(?!\d)", found.version)
    return (int(match[1]), int(match[2])) if match else None


def driver_owner(situation: Situation) -> Maybe[DriverOwner]:
    """Return who installs the NVIDIA driver on nodes like this one."""
    examination, package = situation.examination, situation.gpu_driver
    origin = package.origin if isinstance(package, DriverPackage) else package
    if origin is DriverOrigin.CONTAINER:
        return DriverOwner.OPERATOR
    if not isinstance(origin, Unknown):
        return DriverOwner.HOST
    container = map_known(examination.driver_container, lambda traces: traces.driver)
    if container is True:
        return DriverOwner.OPERATOR
    family = family_of(situation)
    if family is Family.TALOS:
        return DriverOwner.HOST  # a system extension
    if family in (Family.COREOS, Family.CONTAINER_OS):
        return DriverOwner.OPERATOR
    gpus = examination.node.gpus
    if container is False and isinstance(gpus, GpuFacts) and isinstance(gpus.driver.version, str):
        return DriverOwner.HOST
    enabled = map_known(gpu_operator(situation), lambda operator: operator.driver_enabled)
    if not isinstance(enabled, Unknown):
        return DriverOwner.OPERATOR if enabled else DriverOwner.HOST
    detail = "no driver is installed, or its origin could not be read"
    return Unknown(Reason.NOT_THERE, "the NVIDIA driver", detail)


def gpu_operator(situation: Situation) -> Maybe[GpuOperator]:
    """Return the cluster's ClusterPolicy."""
    return map_known(situation.kubernetes, lambda cluster: cluster.gpu_operator)


def nic_stack(situation: Situation) -> Maybe[NicStack]:
    """Return where the RDMA modules come from; without the NIC driver's facts, from ofed_info."""
    driver = situation.nic_driver
    if isinstance(driver, NicDriver) and not isinstance(driver.stack, Unknown):
        return driver.stack
    traces = situation.examination.driver_container
    if not isinstance(traces, Unknown) and traces.mofed is True:
        return NicStack.CONTAINER
    release = ofed_of(situation.examination)
    if isinstance(release, Unknown):
        return NicStack.INBOX if release.reason is Reason.NOT_THERE else release
    return NicStack.MLNX_OFED if release.startswith("MLNX") else NicStack.DOCA_OFED


def has_host_ofed(situation: Situation) -> bool:
    """Return whether OFED is installed on the host itself."""
    stack = nic_stack(situation)
    return not isinstance(stack, Unknown) and stack.is_ofed


def driver_version(situation: Situation) -> str:
    """Return the installed driver's version, "580.95.05"; "" where it is unknown or not a version."""
    package, gpus = situation.gpu_driver, situation.examination.node.gpus
    version = package.version if isinstance(package, DriverPackage) else package
    if isinstance(version, Unknown) and isinstance(gpus, GpuFacts):
        version = gpus.driver.version
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else ""


def has_nvlink5(situation: Situation) -> bool:
    """Return whether GPUs have NVLink 5 switches, which are managed through ib_umad (B200, B300)."""
    gpus = situation.examination.node.gpus
    found = gpus.gpus if isinstance(gpus, GpuFacts) else ()
    return any(
        known(gpu.compute_capability, (0, 0)) >= BLACKWELL.capability and known(gpu.nvlinks, 0)
        for gpu in found
    )


def compute_nics(situation: Situation) -> tuple[RdmaDevice, ...]:
    """Return the NICs for the traffic of GPUs, without storage and management."""
    examination = situation.examination
    roles = roles_of(examination.node, examination.topology)
    rdma = examination.node.rdma
    devices = rdma.devices if isinstance(rdma, RdmaFacts) else ()
    return tuple(
        device for device in devices if device.name in roles and roles[device.name].role is Role.COMPUTE
    )


_OWNERS = {DriverOwner.HOST: "installed on the host", DriverOwner.OPERATOR: "installed by the GPU Operator"}
COMMENT_WIDTH = 100
_LONGEST = 600  # characters of one comment: names in it come from the node
# A reader of YAML 1.2 takes some plain words for a number or a Boolean that PyYAML, with YAML 1.1, does not.
_AMBIGUOUS = re.compile(r"[-+.\d].*|y|n|true|false", re.IGNORECASE | re.DOTALL)


@frozen
class Commented:
    """A value of a document, with a comment above its key or item."""

    value: Any
    text: str


def commented(value: Any, id_: str, **words: object) -> Commented:
    """Return a value with a comment of manifests.toml."""
    return Commented(value, _text("comment", id_, words))


def comment(id_: str, **words: object) -> list[str]:
    """Return a comment of manifests.toml as lines."""
    return comment_lines(_text("comment", id_, words))


def head(
    request: ManifestRequest, id_: str, notes: Sequence[str] = (), use: Sequence[str] = (), **words: object
) -> list[str]:
    """Return the comment lines at the top: what it is, what it was derived from, how to use it, and notes.

    `id_`: its table in manifests.toml, to add `notes` and commands, `use`. A requirement of the
    path that this node does not meet is a note.
    """
    row = read_toml_once(__package__, "manifests.toml")[id_]
    first, own_use, last = (
        [text.format(**words) for text in row.get(part, ())] for part in ("notes", "use", "last_notes")
    )
    lines = comment_lines(row["title"].format(**words))
    lines += comment_lines(derivation(request.situation.examination.node))
    for label, value in _facts(request):
        lines += comment_lines(f"{label + ':':<12}{value}", " " * 12)
    loads = "nvidia_peermem, which DMA-BUF does not need, is still loaded by"
    old = request.choice.old_peermem if request.path is GdrPath.DMABUF else ()
    loaders = (f"{loads} {loader.source}: {loader.value}" for loader in old)
    for line in (*_open_requirements(request), *loaders, *first, *notes, *last):
        lines += comment_lines(f"Note: {line}", " " * 6)
    if commands := [*own_use, *use]:
        lines += comment_lines("Use:") + [command_line(command) for command in commands]
    return lines


def _facts(request: ManifestRequest) -> list[tuple[str, str]]:
    situation, node = request.situation, request.situation.examination.node
    gpus = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    models = Counter(printable(gpu.name, 60) for gpu in gpus)
    nics = compute_nics(situation)
    layers = Counter(known(nic.ports[0].link_layer, "?") if nic.ports else "?" for nic in nics)
    others = len(node.rdma.devices) - len(nics) if isinstance(node.rdma, RdmaFacts) else 0
    names = ", ".join(printable(nic.name, 32) for nic in nics[:16])
    system = situation.examination.distribution
    pretty = map_known(node.platform, lambda platform: platform.distribution)
    name = system.name if isinstance(system, Distribution) else known(pretty, "unknown")
    parts = (node.gpus, node.rdma)
    no_gpus, no_nics = ("unknown" if isinstance(facts, Unknown) else "none seen" for facts in parts)
    driver = driver_version(situation) or no_gpus
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
        ("GPUs", ", ".join(f"{count} × {model}" for model, count in models.items()) or no_gpus),
        ("GPU driver", f"{driver}{modules}{owner}"),
        (
            "NICs",
            f"{', '.join(f'{count} × {printable(layer, 20)}' for layer, count in layers.items()) or no_nics}"
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


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes what looks like a number and writes text of many lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values twice, never as an anchor."""
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else '"' if _AMBIGUOUS.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(Commented, lambda dumper, commented: dumper.represent_data(commented.value))


def comment_lines(text: str, hanging: str = "") -> list[str]:
    """Return a text as comment lines for YAML, sh, Dockerfile and systemd; nothing in it can end a comment.

    A backslash at the end of a line would continue it in some of these formats. `hanging`: indents all lines
    but the first.
    """
    lines = textwrap.wrap(
        printable(text, _LONGEST), COMMENT_WIDTH, subsequent_indent=hanging, break_on_hyphens=False
    )
    return [f"# {line.rstrip(' ' + chr(92))}".rstrip() for line in lines]


def command_line(text: str) -> str:
    """Return a comment line that is not wrapped, so that a command in it can be copied."""
    return f"#   {printable(text, _LONGEST).rstrip(' ' + chr(92))}"


def dump(value: Mapping[str, Any]) -> str:
    """Return one document with each comment on its own lines."""
    text = yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=4096)
    above: dict[int, list[str]] = {}
    for number, comment in _comments(value, yaml.compose(text, Loader=yaml.SafeLoader)):
        above.setdefault(number, []).extend(comment_lines(comment))
    written: list[str] = []
    for number, line in enumerate(text.splitlines()):
        indent = line[: len(line) - len(line.lstrip(" "))]
        written += [f"{indent}{comment}" for comment in above.get(number, ())]
        written.append(line)
    return "\n".join(written) + "\n"


def _comments(value: Any, node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Yield each comment with the number of the line at which its key or item begins."""
    below: list[tuple[Any, int, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        pairs = zip(value.values(), node.value, strict=True)
        below = [(item, key.start_mark.line, part) for item, (key, part) in pairs]
    elif isinstance(node, yaml.SequenceNode):
        below = [(item, part.start_mark.line, part) for item, part in zip(value, node.value, strict=True)]
    for item, number, part in below:
        if isinstance(item, Commented):
            yield number, item.text
        yield from _comments(item.value if isinstance(item, Commented) else item, part)


def join(head: Iterable[str], *documents: str) -> str:
    """Return the head's comment lines and the documents as one stream."""
    return "\n".join(head) + "\n" + "---\n".join(documents)
