"""Parse YAML for the environment of programs: Kubernetes, Compose, Helm values, workflows, cloud-init.

Lists of `name` and `value`, maps whose keys are variables, and lists of NAME=VALUE count under any key.
Commands, blocks of `run` and `script`, and every text of several lines are read like a shell script.

And what containers with GPUs have for RDMA, and what they miss. Sources: the pods of NVIDIA's
k8s-rdma-shared-dev-plugin, SR-IOV device plugin and Network Operator; Kubernetes, Device Plugins and Dynamic
Resource Allocation; Linux drivers/infiniband/core/umem.c (RLIMIT_MEMLOCK).

The YAML is hostile: its tree has line numbers, and is bounded in size, depth, aliases and time. PyYAML's
parser yields events one by one; building the tree from them needs no recursion and never copies what an alias
names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from probes.base.evidence import Severity
from probes.base.text import printable
from probes.base.unknown import known
from probes.facts.system.device_nodes import INFINIBAND
from probes.nccl.variables.variable import VARIABLE_NAME
from probes.setup.env.assignments import (
    MAX_ASSIGNMENTS,
    VALUE_LIMIT,
    Assignment,
    FileKind,
    GpuContainer,
    Group,
    ParsedFile,
    Problem,
    parse_conf,
)
from probes.setup.env.clouds import Stack
from probes.setup.env.shell_commands import Command, Word
from probes.setup.env.shell_file import Environment, Script
from probes.snapshot.examination import Examination

_DEEPEST = 64
_MAX_EVENTS = 40_000
_MAX_ALIASES = 256
_TEXT_TAG = "tag:yaml.org,2002:str"


class YamlError(Exception):
    """The text is no YAML that gdrtop reads; `line` is 0 where no line is to blame."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass
class Scalar:
    """A value; `is_text`: YAML reads it as a string."""

    line: int
    text: str
    is_text: bool


@dataclass
class List:
    """A list."""

    line: int
    items: list[Value] = field(default_factory=list)


@dataclass
class Mapping:
    """A map; of equal keys the last one counts."""

    line: int
    items: dict[str, Value] = field(default_factory=dict)
    pending: str | None = None  # the key whose value comes next


Value = Scalar | List | Mapping


def read_yaml(text: str) -> list[Value]:
    """Return the documents of a stream.

    Raises:
        YamlError: no YAML, or more of it than gdrtop reads.
    """
    import yaml

    documents: list[Value] = []
    stack: list[List | Mapping] = []
    anchors: dict[str, Value] = {}
    resolve: Callable[..., str] = yaml.resolver.Resolver().resolve
    aliases = 0
    try:
        for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
            mark = event.start_mark
            line = mark.line + 1 if mark else 0
            if count >= _MAX_EVENTS:
                raise YamlError(line, f"more than {_MAX_EVENTS} elements")
            value: Value | None = None
            if isinstance(event, yaml.ScalarEvent):
                tag = event.tag or resolve(yaml.ScalarNode, event.value, event.implicit)
                value = Scalar(line, event.value, tag == _TEXT_TAG)
            elif isinstance(event, yaml.AliasEvent):
                aliases += 1
                if aliases > _MAX_ALIASES:
                    raise YamlError(line, f"more than {_MAX_ALIASES} aliases")
                value = anchors.get(event.anchor or "", Scalar(line, "", False))
            elif isinstance(event, yaml.SequenceStartEvent):
                value = List(line)
            elif isinstance(event, yaml.MappingStartEvent):
                value = Mapping(line)
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                stack.pop()
            if value is None:
                continue
            if isinstance(event, yaml.NodeEvent) and event.anchor and not isinstance(event, yaml.AliasEvent):
                anchors[event.anchor] = value
            _attach(value, stack, documents)
            if isinstance(event, yaml.CollectionStartEvent):
                assert not isinstance(value, Scalar)
                stack.append(value)
                if len(stack) > _DEEPEST:
                    raise YamlError(line, f"nested more than {_DEEPEST} levels deep")
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        raise YamlError(place.line + 1 if place else 0, printable(error.problem or "", 120)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(0, printable(str(error).partition("\n")[0], 120)) from None
    return documents


def _attach(value: Value, stack: list[List | Mapping], documents: list[Value]) -> None:
    """Put a value where it belongs: in the innermost collection, or as a document."""
    if not stack:
        documents.append(value)
    elif isinstance(parent := stack[-1], List):
        parent.items.append(value)
    elif parent.pending is None:
        parent.pending = value.text if isinstance(value, Scalar) else ""
    else:
        parent.items[parent.pending] = value
        parent.pending = None


def mappings_of(documents: list[Value]) -> Iterator[Mapping]:
    """Yield every mapping once, in document order; aliases lead to mappings that were yielded already."""
    seen: set[int] = set()
    waiting: list[Value] = list(reversed(documents))
    while waiting:
        value = waiting.pop()
        if isinstance(value, Scalar) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            yield value
            waiting.extend(reversed(value.items.values()))
        else:
            waiting.extend(reversed(value.items))


_MAX_GROUPS = 64
_ARGUMENTS = ("command", "args", "entrypoint")
_SCRIPTS = frozenset(
    ("run", "script", "before_script", "cmd", "shell", "inline", "runcmd", "bootcmd", "commands")
)
_PROSE = frozenset(("description", "summary", "title", "message", "help", "notes", "comment"))
_GPU = re.compile(r"nvidia\.com/(?:gpu(?:\.shared)?|mig-.{1,32})")
_GKE = "networking.gke.io/interfaces"  # also brings the RDMA device of each interface
_ATTACHED = ("k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network", _GKE)


def parse_pod(text: str, is_inner: bool = False) -> ParsedFile:
    """Parse all documents; text that is no YAML is one problem. `is_inner`: a file in a ConfigMap."""
    try:
        documents = read_yaml(text)
    except YamlError as error:
        return ParsedFile(FileKind.POD, (), (_unreadable(text, error),))
    groups: list[Group] = []
    problems: list[Problem] = []
    known: set[int] = set()  # maps that belong to a container that was read
    mappings = list(mappings_of(documents))
    containers = [container for mapping in mappings for container in gpu_containers(mapping)]
    for mapping in mappings:
        if len(groups) >= _MAX_GROUPS:
            title = f"Only the first {_MAX_GROUPS} containers are checked"
            problems.append(Problem(mapping.line, Severity.WARNING, title))
            break
        if id(mapping) not in known:
            groups.extend(_groups_of(mapping, problems, known, is_inner))
        if "envFrom" in mapping.items and "image" in mapping.items:
            source = mapping.items["envFrom"]
            text = "envFrom sets more variables, which are not in this file"
            problems.append(Problem(source.line, Severity.NOTE, text))
    shown = tuple(problems[:MAX_ASSIGNMENTS])
    return ParsedFile(FileKind.POD, tuple(groups[:_MAX_GROUPS]), shown, tuple(containers[:_MAX_GROUPS]))


def _unreadable(text: str, error: YamlError) -> Problem:
    if "{{" in text or "{%" in text:
        title = "The file is a template, not YAML, so it was not checked"
        return Problem(
            error.line, Severity.NOTE, title, fix="Render it first, for example with helm template"
        )
    return Problem(error.line, Severity.CRITICAL, f"The file is not valid YAML: {error.reason}")


def _groups_of(mapping: Mapping, problems: list[Problem], known: set[int], is_inner: bool) -> Iterator[Group]:
    """Yield the environments of a container, of a script, or of a map of variables."""
    name = _name_of(mapping)
    found = _of_map(mapping)
    words: list[Word] = []
    scripts: list[Word] = []
    for key, value in mapping.items.items():
        if key in ("env", "environment") and isinstance(value, Mapping):
            known.add(id(value))
            found.extend(_of_map(value))
        elif isinstance(value, List):
            entries = [_word(item) for item in value.items if isinstance(item, Scalar)]
            if key in _ARGUMENTS:
                words.extend(entries)
            elif key in _SCRIPTS:
                scripts.extend(entries)
            else:
                found.extend(_of_list(value, problems))
        elif isinstance(value, Scalar) and VARIABLE_NAME.search(value.text):
            file = _file_of(key, mapping)
            if file.endswith("nccl.conf"):
                yield from _moved(parse_conf(value.text), _word(value).line, problems)
            elif key.endswith((".yaml", ".yml")) and not is_inner:
                inner = parse_pod(value.text, True)
                yield from _moved(inner, _word(value).line, problems if inner.groups else [])
            elif file.endswith(("/environment", ".env")):  # pam_env(8): no export
                script = Script(exports_all=True)
                script.read(value.text, _word(value).line)
                yield from _finished(name, script, problems)
            elif key in _ARGUMENTS or key in _SCRIPTS or ("\n" in value.text and key not in _PROSE):
                scripts.append(_word(value))
    inherited = {assignment.name: assignment for assignment in found[:MAX_ASSIGNMENTS]}
    if words or scripts:
        yield from _of_commands(name, inherited, words, scripts, problems)
    elif inherited:
        yield Group(name, tuple(inherited.values()))


def _name_of(mapping: Mapping) -> str:
    name = mapping.items.get("name")
    is_container = isinstance(name, Scalar) and "image" in mapping.items
    return f"container {printable(name.text, 63)}" if is_container and isinstance(name, Scalar) else ""


def _word(value: Scalar) -> Word:
    """Return a text with the line where it begins; a block begins below its key."""
    return Word(value.text, value.line + ("\n" in value.text))


def _file_of(key: str, mapping: Mapping) -> str:
    """Return the name of a file that a text becomes: a key of a ConfigMap, or a path beside `content`."""
    paths = (mapping.items.get(name) for name in ("path", "destination"))
    path = next((scalar.text for scalar in paths if isinstance(scalar, Scalar)), "")
    return path if key == "content" else key


def _moved(parsed: ParsedFile, line: int, problems: list[Problem]) -> Iterator[Group]:
    """Yield the groups of a file inside another one; `line` is that of its first line."""
    problems.extend(
        replace(problem, line=problem.line + line - 1) for problem in parsed.problems if problem.line
    )
    is_conf = parsed.kind is FileKind.NCCL_CONF
    for group in parsed.groups:
        found = group.effective(first_wins=is_conf).values()
        name = group.name or ("nccl.conf" if is_conf else "")
        yield Group(name, tuple(replace(assignment, line=assignment.line + line - 1) for assignment in found))


def _of_commands(
    name: str, inherited: Environment, words: list[Word], scripts: list[Word], problems: list[Problem]
) -> Iterator[Group]:
    """Read the arguments of a container and its scripts, each with the variables of the container."""
    if words:
        script = Script(inherited)
        script.run(Command(words, ""))
        for word in words:
            if re.search(r"\s", word.text):  # for an entrypoint that is a shell
                script.read(word.text, word.line)
        yield from _finished(name, script, problems)
    for word in scripts:
        script = Script(inherited)
        script.read(word.text, word.line)
        yield from _finished(name, script, problems)


def _finished(name: str, script: Script, problems: list[Problem]) -> Iterator[Group]:
    problems.extend((*script.problems, *script.not_exported()))
    yield from (Group(name, tuple(found.values())) for found in script.environments())


def _of_map(mapping: Mapping) -> list[Assignment]:
    """Return the variables of a map, as Helm values and Compose have it."""
    return [
        Assignment(key, _text(value) if isinstance(value, Scalar) else None, value.line)
        for key, value in mapping.items.items()
        if VARIABLE_NAME.fullmatch(key)
    ]


def _of_list(entries: List, problems: list[Problem]) -> list[Assignment]:
    """Return the variables of a list: `name` and `value` in Kubernetes, NAME=VALUE in Compose."""
    found: list[Assignment] = []
    for entry in entries.items:
        if isinstance(entry, Scalar):
            name, equals, value = entry.text.partition("=")
            if equals and VARIABLE_NAME.fullmatch(name):
                found.append(Assignment(name, _text(Scalar(entry.line, value, True)), entry.line))
        elif isinstance(entry, Mapping):
            key = entry.items.get("name")
            if isinstance(key, Scalar) and VARIABLE_NAME.fullmatch(key.text.strip()):
                found.append(_of_entry(key, entry.items.get("value"), problems))
    first: dict[str, int] = {}
    for assignment in found:
        if assignment.name in first:
            title = f"{assignment.name} is already set on line {first[assignment.name]}"
            detail, fix = "Kubernetes uses the last entry.", "Remove one entry"
            problems.append(Problem(assignment.line, Severity.WARNING, title, detail, fix, assignment.name))
        first.setdefault(assignment.name, assignment.line)
    return found[:MAX_ASSIGNMENTS]


def _of_entry(name: Scalar, value: Value | None, problems: list[Problem]) -> Assignment:
    shown = name.text.strip()
    if shown != name.text:
        title = f"The name of {shown} has spaces"
        problems.append(Problem(name.line, Severity.CRITICAL, title, fix="Remove them", variable=shown))
    if isinstance(value, Scalar) and not value.is_text:
        title = f"The value of {shown} is not a string, so Kubernetes rejects the object"
        fix = f'Quote it: value: "{printable(value.text, 64)}"'
        problems.append(Problem(value.line, Severity.CRITICAL, title, fix=fix, variable=shown))
    return Assignment(shown, _text(value) if isinstance(value, Scalar) else None, name.line)


def _text(value: Scalar) -> str | None:
    return None if "$" in value.text or "{{" in value.text else printable(value.text, VALUE_LIMIT)


def gpu_containers(mapping: Mapping) -> Iterator[GpuContainer]:
    """Yield the containers with GPUs of a pod, or of a template of pods."""
    pod = _map(mapping, "spec")
    containers = pod.items.get("containers")
    if not isinstance(containers, List):
        return
    annotations = _map(_map(mapping, "metadata"), "annotations").items
    has_own_network = not _is_true(pod, "hostNetwork") and not any(name in annotations for name in _ATTACHED)
    mounts = [_text_at(_map(volume, "hostPath"), "path") for volume in _maps(pod, "volumes")]
    has_verbs = any(INFINIBAND.startswith(path.rstrip("/")) for path in mounts if path.startswith("/dev"))
    for container in containers.items:
        if not isinstance(container, Mapping):
            continue
        resources = _map(container, "resources")
        asked = {**_map(resources, "requests").items, **_map(resources, "limits").items}
        gpus = [_count(value) for name, value in asked.items() if _GPU.fullmatch(name)]
        if not gpus or gpus == [0]:
            continue
        security = _map(container, "securityContext")
        is_privileged = _is_true(security, "privileged")
        others = [name for name, value in asked.items() if "/" in name and _count(value) != 0]
        has_device = any(not _GPU.fullmatch(name) for name in others)
        added = _map(security, "capabilities").items.get("add")
        listed = added.items if isinstance(added, List) else []
        capabilities = {capability.text for capability in listed if isinstance(capability, Scalar)}
        yield GpuContainer(
            printable(_text_at(container, "name"), 63),
            container.line,
            None if None in gpus else sum(filter(None, gpus)),
            is_privileged or has_device or "claims" in resources.items or has_verbs or _GKE in annotations,
            is_privileged or bool({"IPC_LOCK", "CAP_IPC_LOCK", "ALL"} & capabilities),
            has_own_network,
        )


def missing_devices(
    containers: Sequence[GpuContainer], examination: Examination, stack: Stack | None
) -> Iterator[Problem]:
    """Name what containers with GPUs need for RDMA; a warning if they have all GPUs of the node."""
    all_gpus = len(examination.topology.gpus)
    devices = examination.topology.devices.values()
    layers = {known(port.link_layer, "") for device in devices for port in device.ports}
    resource = "vpc.amazonaws.com/efa" if stack is Stack.EFA else "rdma/NAME"
    for container in containers:
        is_whole = container.gpus is not None and container.gpus >= max(2, all_gpus)
        severity = Severity.WARNING if is_whole else Severity.NOTE
        if not container.has_rdma:
            title = f"Container {container.name} requests GPUs but no RDMA device"
            detail = (
                f"It has no {INFINIBAND}, so its traffic to other nodes uses TCP, without GPUDirect RDMA."
            )
            fix = f"Add {resource}: 1 to resources.limits, with the name that the node's device plugin uses"
            yield Problem(container.line, severity, title, detail, fix)
        if not container.locks_memory and stack is not Stack.EFA:
            title = f"Container {container.name} has no IPC_LOCK capability"
            detail = "Registering memory fails if the runtime limits locked memory."
            fix = "Add securityContext.capabilities.add: [IPC_LOCK]"
            yield Problem(container.line, severity, title, detail, fix)
        if container.has_own_network and stack is None and layers == {"Ethernet"}:
            title = (
                f"The pod of container {container.name} uses neither the host network nor an additional one"
            )
            detail = "RoCE needs the GID of a network interface in the pod."
            fix = "Attach a network (annotation k8s.v1.cni.cncf.io/networks), or set hostNetwork: true"
            yield Problem(container.line, severity, title, detail, fix)


def _map(mapping: Mapping, key: str) -> Mapping:
    value = mapping.items.get(key)
    return value if isinstance(value, Mapping) else Mapping(mapping.line)


def _maps(mapping: Mapping, key: str) -> list[Mapping]:
    value = mapping.items.get(key)
    return [item for item in value.items if isinstance(item, Mapping)] if isinstance(value, List) else []


def _text_at(mapping: Mapping, key: str) -> str:
    value = mapping.items.get(key)
    return value.text if isinstance(value, Scalar) else ""


def _is_true(mapping: Mapping, key: str) -> bool:
    return _text_at(mapping, key).lower() == "true"


def _count(value: Value) -> int | None:
    """Return the number of devices; None: not a number, as in a template."""
    text = value.text if isinstance(value, Scalar) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None
