"""Command lines that start containers: docker, podman, nerdctl, enroot, Slurm with pyxis, Apptainer.

Sources: the manuals docker-run(1), podman-run(1), nerdctl, apptainer exec; NVIDIA/pyxis README; NVIDIA/enroot
doc/cmd/start.md and conf/hooks/99-mellanox.sh.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from probes.base.frozen import frozen
from probes.facts.system.device_nodes import INFINIBAND
from probes.nccl.variables.catalogue import VARIABLE_NAME
from probes.setup.env.container import Container, Syntax
from probes.setup.env.shell_commands import Word
from probes.setup.env.yaml_containers import (
    INJECTS,
    RDMA_VARIABLE,
    gpu_count,
    gpus_of,
    is_enough_shm,
    is_seen,
    locks_by_capability,
    network_of,
)
from probes.setup.env.yaml_tree import Mapping as YamlMap
from probes.setup.env.yaml_tree import Scalar

STARTS = re.compile(r"\b(?:docker|podman|nerdctl|enroot|apptainer|singularity|helm)\s|--container-image")
_ENGINES = frozenset(("docker", "podman", "nerdctl", "nvidia-docker"))
_SINGULARITY = frozenset(("apptainer", "singularity"))
_HIDES = ("--contain", "--containall", "-c", "-C")
_CLEANS = ("--cleanenv", "-e", "--containall", "-C")
_BINDS = ("--bind", "-B", "--mount")
_MAX_WORDS = 4096
_MOST_GLOBAL = 8  # options and their values between docker and run
# Options of `docker run` and `podman run` without a value; the others take the next word.
_FLAGS = frozenset(
    (
        *("--detach", "--interactive", "--tty", "--rm", "--privileged", "--init", "--read-only", "--quiet"),
        *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--help", "--replace"),
        *("--disable-content-trust", "--env-host", "--http-proxy", "--no-hosts", "--no-hostname", "--passwd"),
        *("--use-api-socket", "--rmi", "--rootfs", "--systemd", "--tls-verify"),
    )
)
_SHORT_FLAGS = "ditPq"
_LONG = {"-e": "--env", "-v": "--volume", "-u": "--user", "-w": "--workdir", "-p": "--publish"}
_REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w{0,127})|\{([A-Za-z_]\w{0,127})(?:\[[@*]\])?\}|[@*])")
_IMAGE = re.compile(r"image|img|container|tag", re.IGNORECASE)  # the name of a variable: options end there
_ENROOT_VISIBLE, _ENROOT_RESTRICT = "MELLANOX_VISIBLE_DEVICES", "ENROOT_RESTRICT_DEV"
Lookup = Callable[[str], str | None]
"""The words that a variable of the script may hold; None: unknown."""


@frozen
class Run:
    """One command that starts a container."""

    engine: str  # "docker run"
    passes: tuple[str, ...]  # variables that it takes from the shell by name
    reads_file: bool  # --env-file: variables of another file as well
    is_partial: bool  # options are in a variable whose value is unknown
    has_own_environment: bool  # it gets only the variables that are passed
    container: Container | None  # None: it asks for no GPU

    @property
    def option(self) -> str:
        """The option that passes a variable."""
        return "--env" if self.engine.startswith(tuple(_SINGULARITY)) else "-e"


def run_of(words: Sequence[Word], lookup: Lookup) -> Run | None:
    """Return what a command starts; None: no container."""
    names = [posixpath.basename(word.text) for word in words[:_MAX_WORDS]]
    for place, name in enumerate(names):
        after = names[place + 1 : place + 1 + _MOST_GLOBAL]
        if name in _ENGINES and (command := next((each for each in after if each in ("run", "create")), "")):
            if {"compose", "exec", "build"} & set(after[: after.index(command)]):
                return None
            start = place + 2 + after.index(command)
            is_rootless = name == "podman" and "sudo" not in names[:place]
            return _docker(f"{name} {command}", words[place], words[start:], lookup, is_rootless)
        if name in _SINGULARITY and (command := next((each for each in after if each in _RUNS), "")):
            start = place + 1 + after.index(command)
            return _apptainer(f"{name} {command}", words[place], words[start + 1 :], lookup)
        if name == "enroot" and "start" in after:
            return _enroot("enroot start", words[place], lookup)
        if name.startswith("--container-image"):
            return _enroot("srun --container-image", words[0], lookup)
    return None


_RUNS = ("exec", "run", "shell")


@dataclass
class _Options:
    """The options before the image."""

    values: dict[str, list[str]] = field(default_factory=dict)
    is_partial: bool = False  # some are in a variable whose value is unknown

    def all(self, *names: str) -> list[str]:
        return [value for name in names for value in self.values.get(name, ())]

    def has(self, *names: str) -> bool:
        return any(name in self.values and self.values[name][-1] != "false" for name in names)


def _options(words: Sequence[Word], lookup: Lookup) -> _Options:
    options = _Options()
    texts = _expanded(words, lookup, options)
    for text in texts:
        name, equals, value = text.partition("=")
        if text == "--" or not text.startswith("-"):
            break
        if not text.startswith("--"):
            kept = text.lstrip("-").lstrip(_SHORT_FLAGS)
            if not kept:
                continue
            name, value = f"-{kept[:1]}", kept[1:].removeprefix("=")
            equals = "=" if value else ""
            name = _LONG.get(name, name)
        if name not in _FLAGS and not equals:
            value = next(texts, "")
        options.values.setdefault(name, []).append(value if equals or name not in _FLAGS else "true")
    return options


def _expanded(words: Sequence[Word], lookup: Lookup, options: _Options) -> Iterator[str]:
    """Yield the words, and those in variables that stand alone: $OPTIONS, "${OPTIONS[@]}"."""
    count = 0
    for word in words[:_MAX_WORDS]:
        match = _REFERENCE.fullmatch(word.text)
        if match is None:
            if word.text.startswith(("$(", "`")):
                options.is_partial = True
                continue
            yield word.text
            continue
        name = match[1] or match[2] or ""
        found = lookup(name)
        if found is None and _IMAGE.search(name):
            return
        if found is None:
            options.is_partial = True
            continue
        for part in found.split()[:_MAX_WORDS]:
            count += 1
            if count > _MAX_WORDS or _REFERENCE.fullmatch(part):
                options.is_partial = True
            else:
                yield part.strip("\"'")


def _docker(engine: str, first: Word, words: Sequence[Word], lookup: Lookup, is_rootless: bool) -> Run:
    options = _options(words, lookup)
    variables = dict(_pair(text) for text in options.all("--env"))
    gpus = _gpus(engine, options, variables)
    names = tuple(text for text in options.all("--env") if VARIABLE_NAME.fullmatch(text))
    reads_file = options.has("--env-file")
    container = None if gpus == 0 else _container(engine, first.line, options, variables, gpus, is_rootless)
    return Run(engine, names, reads_file, options.is_partial, not options.has("--env-host"), container)


def _gpus(engine: str, options: _Options, variables: Mapping[str, str]) -> int | None:
    if asked := options.all("--gpus"):
        return gpu_count(asked[-1])
    devices = options.all("--device")
    is_nvidia = engine.startswith("nvidia-docker") or options.all("--runtime")[-1:] == ["nvidia"]
    count = gpus_of(devices, is_nvidia, variables.get("NVIDIA_VISIBLE_DEVICES", ""))
    by_file = any(device.startswith("/dev/nvidia0") for device in devices)
    return None if count == 0 and not is_nvidia and by_file else count


def _container(
    engine: str,
    line: int,
    options: _Options,
    variables: Mapping[str, str],
    gpus: int | None,
    is_rootless: bool,
) -> Container:
    devices, volumes = options.all("--device"), [text.split(":") for text in options.all("--volume")]
    pairs = [(parts[0], parts[1]) for parts in volumes if len(parts) > 1]
    for text in options.all("--mount", "--tmpfs"):
        fields = dict(_pair(part) for part in text.split(","))
        target = fields.get("target", fields.get("dst", fields.get("destination", text.partition(":")[0])))
        pairs.append((fields.get("source", fields.get("src", "")), target))
    mounts = any(is_seen(source, target) for source, target in pairs if source)
    rules = " ".join(options.all("--device-cgroup-rule"))
    limits = [text.partition("=")[2] for text in options.all("--ulimit") if text.startswith("memlock=")]
    locks = bool(limits) and all(part in ("-1", "unlimited") or "$" in part for part in limits[-1].split(":"))
    by_capability = locks_by_capability(name for text in options.all("--cap-add") for name in text.split(","))
    network = options.all("--network", "--net")
    shm, ipc = options.all("--shm-size"), options.all("--ipc")
    return Container(
        subject=engine,
        line=line,
        syntax=Syntax.DOCKER,
        gpus=gpus,
        has_devices=any(
            device.startswith((INFINIBAND, "/dev:", "rdma")) or device == "/dev" for device in devices
        )
        or (mounts and ("a *:*" in rules or "231:" in rules))
        or variables.get(INJECTS) == "enabled",
        mounts_files=mounts,
        is_privileged=options.has("--privileged"),
        locks_memory=locks or by_capability,
        network=network_of(network[-1] if network else ""),
        has_shm=(bool(shm) and is_enough_shm(shm[-1]))
        or any(mode.startswith(("host", "container:")) for mode in ipc)
        or any(target.rstrip("/").startswith("/dev/shm") for _, target in pairs),
        is_rootless=is_rootless,
        expects_rdma=mounts or by_capability or any(RDMA_VARIABLE.match(name) for name in variables),
        is_partial=options.is_partial or any("$" in device for device in devices),
    )


def _apptainer(engine: str, first: Word, words: Sequence[Word], lookup: Lookup) -> Run:
    """Read the options before the image; those that take a value hide nothing."""
    options = _Options()
    texts = list(_expanded(words, lookup, options))
    hidden, cleans, has_gpus, binds = "", False, False, ""
    for place, text in enumerate(texts):
        if not text.startswith("-") and (place == 0 or texts[place - 1] not in _WITH_VALUE):
            break
        name, _, value = text.partition("=")
        hidden = hidden or (text if text in _HIDES else "")
        cleans = cleans or text in _CLEANS
        has_gpus = has_gpus or text in ("--nv", "--nvccli")
        if name in _BINDS:
            binds += f",{value or ''.join(texts[place + 1 : place + 2])}"
    sees = any(is_seen(each.split(":")[0], each.split(":")[-1]) for each in binds.split(",") if each)
    container = None
    if has_gpus and not options.is_partial:
        container = Container(engine, first.line, Syntax.OF_HOST, None, hidden_by="" if sees else hidden)
    return Run(engine, (), False, options.is_partial, cleans, container)


_WITH_VALUE = frozenset(
    (
        *("--bind", "-B", "--mount", "--env", "--env-file", "--home", "-H", "--pwd", "--cwd", "--workdir"),
        *("-W", "--overlay", "-o", "--scratch", "-S", "--app", "--network", "--hostname", "--security"),
        "--fakeroot",
    )
)


def _enroot(engine: str, first: Word, lookup: Lookup) -> Run:
    visible, restricts = lookup(_ENROOT_VISIBLE), lookup(_ENROOT_RESTRICT)
    hidden = ""
    if visible in ("none", "void"):
        hidden = f"{_ENROOT_VISIBLE}={visible}"
    elif visible is None and (restricts or "").lower() in ("y", "yes", "true", "1"):
        hidden = f"{_ENROOT_RESTRICT}={restricts} without {_ENROOT_VISIBLE}"
    container = Container(engine, first.line, Syntax.OF_HOST, None, hidden_by=hidden) if hidden else None
    return Run(engine, (), False, True, False, container)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


# The values that `helm install` and `helm upgrade` set: helm.sh/docs/intro/using_helm, Limitations of --set.

_HELM_COMMANDS = frozenset(("install", "upgrade", "template"))
_SET = ("--set", "--set-string")
_DOT = re.compile(r"(?<!\\)\.")
_COMMA = re.compile(r"(?<!\\),")
_DEEPEST = 16
_MOST = 256


def values_of(words: Sequence[Word]) -> YamlMap | None:
    """Return the values as those of a file; None: the command sets none."""
    names = [posixpath.basename(word.text) for word in words]
    if "helm" not in names or not _HELM_COMMANDS & set(names):
        return None
    root = YamlMap(words[names.index("helm")].line)
    for place, word in enumerate(words):
        option, equals, text = word.text.partition("=")
        if option not in _SET:
            continue
        if not equals:
            text = words[place + 1].text if place + 1 < len(words) else ""
        for pair in _COMMA.split(text)[:_MOST]:
            path, equals, value = pair.partition("=")
            if equals:
                _put(root, _DOT.split(path)[:_DEEPEST], Scalar(word.line, value, option == _SET[1]))
    return root if root.items else None


def _put(mapping: YamlMap, path: Sequence[str], value: Scalar) -> None:
    for key in path[:-1]:
        inner = mapping.items.setdefault(key, YamlMap(value.line))
        if not isinstance(inner, YamlMap):
            return
        mapping = inner
    mapping.items[path[-1]] = value
