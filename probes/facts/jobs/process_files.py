"""Parsers of the files in /proc/PID: command line, status, environment, control groups and maps (proc(5))."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from probes.base.frozen import frozen
from probes.base.text import parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown, known

_MAX_VARIABLES = 128
_VALUE_LIMIT = 1024  # NCCL_IB_HCA of 32 NICs has 400 characters
_NAME_LIMIT = 48  # of a program's or a user's name


@frozen
class MappedLibrary:
    """A library that a process maps."""

    name: str  # "libnccl", "libnccl-net", "libibverbs", "mooncake/engine", …
    path: str  # inside the process's own file system
    version: Maybe[str]  # from the file's name, or of the Python package that contains it

    @property
    def bundled_by(self) -> str:
        """The Python package that brought this copy for itself, "nixl_cu12"; "": anything may load it.

        auditwheel puts copies into PACKAGE.libs/, and a hash into their names.
        """
        match = _BUNDLED.search(self.path)
        return (match["owner"] or match["package"]) if match else ""


_BUNDLED = re.compile(
    r"/\.?(?P<owner>\w{1,64})(?:\.mesonpy)?\.libs/"
    r"|-packages/(?P<package>\w{1,64})/(?:[^/]{1,64}/){0,8}[^/]{1,64}-[0-9a-f]{8}\.so[.0-9]{0,32}$"
)


def has_initialized_nvshmem(libraries: Maybe[tuple[MappedLibrary, ...]]) -> bool:
    """Return whether a process has initialized NVSHMEM, which maps its plugins: a bootstrap and transports.

    libnvshmem_host alone says nothing: PyTorch 2.11 links libtorch_nvshmem to it, so every job maps it.
    Source: NVIDIA/nvshmem, src/host/bootstrap/bootstrap_loader.cpp, src/host/transport/transport.cpp.
    """
    return any(
        library.name.startswith(("nvshmem_bootstrap_", "nvshmem_transport_"))
        for library in known(libraries, ())
    )


# No other variables are kept, because an environment contains passwords and tokens.
PLUGIN_FAMILY = "PCIDEVICE_"
"""Of the SR-IOV device plugin: PCIDEVICE_NVIDIA_COM_HOSTDEV=0000:1b:00.2; the same with _INFO is JSON."""
FAMILIES = ("NCCL_", "UCX_", "FI_", "NVSHMEM_", PLUGIN_FAMILY)
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
"""Variables with the rank of a process among those of all nodes, the most specific ones first."""
WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
SINGLES = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SLURM_JOB_ID", "LOCAL_RANK"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "RDMAV_FORK_SAFE", "WITH_NVIDIA_PEERMEM"),
    *("MC_FORCE_TCP", "MC_PKEY_INDEX", "NIXL_PLUGIN_DIR", "UCCL_P2P_TRANSPORT"),
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    *RANKS,
    *WORLD_SIZES,
)
_LIBRARIES = re.compile(
    r"/(?P<name>libnccl(?:-net[\w-]*|-tuner[\w-]*)?|libibverbs|libmlx5|libcuda|libcudart|libucp|libfabric"
    r"|libnvshmem_host|nvshmem_(?:bootstrap|transport)_[a-z0-9]{1,20}|libgdrapi|libnixl|mooncake/engine"
    r"|hybrid_ep_cpp|deep_ep_cpp|libplugin_(?:UCX|LIBFABRIC|UCCL|GPUNETIO|Mooncake)|libuct_(?:cuda|ib|cma|rdmacm|xpmem))"
    # auditwheel adds a hash to the name, setuptools the Python.
    r"(?:-[0-9a-f]{8}|\.cpython-[\w-]{1,60}|\.abi3)?\.so(?:\.(?P<version>[0-9][0-9.]{0,30}))?$"
)
_NO_LINE = Unknown(Reason.MALFORMED, "/proc/PID/status", "the line is missing")
_NO_PINNED = Unknown(Reason.NOT_THERE, "/proc/PID/status", "no VmPin: the thread is exiting")
_CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h
# vllm/utils/system_utils.py and v1/executor/multiproc_executor.py; sglang/srt/managers/scheduler.py.
_PLACE = re.compile(r"(::[A-Za-z]{1,24})(?:_(?:DP|PP|TP|EP|PCP|DCP)[0-9]{1,4})+")
_INTERPRETER = re.compile(r"(?:python|pypy|perl|ruby|julia|node|bash|dash|zsh|ksh|sh)[0-9.]*")
# Slurm: …/slurm/uid_1000/job_4711/step_0 (v1), …/slurmstepd.scope/job_4711/step_0 (v2).
_SLURM_JOB = re.compile(r"slurm[^\n]{0,256}/job_(?P<id>[0-9]{1,10})(?:/|$)", re.M)
_POD = re.compile(r"kubepods[^\n]{0,256}[/-]pod(?P<id>[0-9a-f]{8})[0-9a-f_-]*")
# Docker and Podman by cgroupfs or systemd; containerd and CRI-O without Kubernetes (nerdctl, crictl).
_CONTAINER = re.compile(
    r"[/:](?:docker|libpod|libpod_parent/libpod|crio|cri-containerd|containerd|nerdctl|default)[/:-]"
    r"(?P<id>[0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?:/|$)",
    re.M,
)


def parse_program(cmdline: bytes) -> Maybe[str]:
    """Return the name of the program, or of an interpreter's script or module, without arguments.

    A process may overwrite its command line with a title; then this is the first word of the title, without
    the place among the workers of an inference engine: "VLLM::Worker_TP0" is VLLM::Worker.
    """
    words = [word.decode("utf-8", "replace") for word in cmdline.split(b"\0")]
    program = _base_name(words[0])
    name = (_script(words[1:], program) if _INTERPRETER.fullmatch(program) else "") or program
    name = _PLACE.sub(r"\1", name)
    if not name:
        return Unknown(Reason.NOT_THERE, "/proc/PID/cmdline", "no command line")
    return printable(name, _NAME_LIMIT)


def _base_name(path: str) -> str:
    return path.split(" ")[0].rstrip("/").rpartition("/")[2]


def _script(arguments: Sequence[str], interpreter: str) -> str:
    """Return the script or module that an interpreter runs; "" if the code is an argument or stdin."""
    is_python = interpreter.startswith(("python", "pypy"))
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            return _base_name(argument)
        if argument.startswith("--"):
            continue
        if not is_python:
            if set(argument) & set("ce"):  # sh -c, perl -e
                return ""
            continue
        for number, letter in enumerate(argument[1:], 2):
            if letter in "mWX":  # these take a value: the rest of the word, else the next word
                value = argument[number:] or next(rest, "")
                if letter == "m":
                    return _base_name(value)
                break
            if letter == "c":
                return ""
    return ""


# Options of inference servers that say what a process does with KV caches, and the values that are kept.
# vLLM, docs/features/disagg_prefill.md; SGLang, python/sglang/srt/server_args.py; Dynamo, docs/backends.
_KV_CONFIG = "kv-transfer-config"
_SERVING_OPTIONS = {
    "disaggregation-mode": re.compile(r"prefill|decode"),
    "kv_connector": re.compile(r"Nixl(?:Push)?Connector|LMCache(?:MP)?Connector(?:V1)?|MooncakeConnector"),
    "kv_buffer_device": re.compile(r"cuda|cpu"),
    "port": re.compile(r"[0-9]{1,5}"),
}
_MOST_WORDS = 4096
_MOST_JSON = 16384  # characters


def parse_serving_options(cmdline: bytes) -> dict[str, str]:
    """Return what a command line says about KV caches, by the option's name; no other words are kept."""
    words = [word.decode("utf-8", "replace") for word in cmdline.split(b"\0")[:_MOST_WORDS]]
    found: dict[str, str] = {}
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        value = value if equals else following
        if name == _KV_CONFIG:
            config = parse_json(value[:_MOST_JSON])
            found |= _kept_options(config) if isinstance(config, dict) else {}
        else:
            found |= _kept_options({name.removeprefix(f"{_KV_CONFIG}."): value})
    return {} if found.keys() <= {"port"} else found


def _kept_options(options: dict[str, object]) -> dict[str, str]:
    return {
        name: value
        for name, form in _SERVING_OPTIONS.items()
        if isinstance(value := options.get(name), str) and form.fullmatch(value)
    }


def serving_words(options: Mapping[str, str]) -> bytes:
    """Return the end of a command line with these options, from which `parse_serving_options` gets them."""
    return b"".join(f"--{name}={value}\0".encode() for name, value in options.items())


def parse_job(cgroup: str, slurm_job_id: str = "") -> str:
    """Return the job that the paths in /proc/PID/cgroup name, or SLURM_JOB_ID; "" if there is none."""
    if match := _SLURM_JOB.search(cgroup):
        return f"Slurm job {match['id']}"
    if re.fullmatch(r"[0-9]{1,10}", slurm_job_id):
        return f"Slurm job {slurm_job_id}"
    if match := _POD.search(cgroup):
        return f"pod {match['id']}"
    if match := _CONTAINER.search(cgroup):
        return f"container {match['id']}"
    return ""


@frozen
class Status:
    """Some fields of /proc/PID/status."""

    uid: Maybe[int]
    state: Maybe[str]
    ipc_lock: Maybe[bool]
    parent: Maybe[int]  # pid; 0 or 1 if no process here is its parent
    pinned_bytes: Maybe[int]  # VmPin; NOT_THERE: the thread is ending, or a kernel thread, which is not 0


_STATUS_FIELDS = {
    "Uid": r"^Uid:\s+[0-9]{1,10}\s+([0-9]{1,10})\s",
    "State": r"^State:\s+([A-Za-z])\b",
    "CapEff": r"^CapEff:\s+([0-9a-f]{1,16})$",
    "PPid": r"^PPid:\s+([0-9]{1,10})$",
    "Tgid": r"^Tgid:\s+([0-9]{1,10})$",
    "VmPin": r"^VmPin:\s+([0-9]{1,15}) kB$",
}


@cache
def _status_field(name: str) -> re.Pattern[str]:
    """Return the expression of a field of Status, which is compiled with the first process."""
    return re.compile(_STATUS_FIELDS[name], re.M)


def parse_status(text: str) -> Status:
    """Parse some fields; the kernel escapes newlines in process names."""
    uid, state = _status_field("Uid").search(text), _status_field("State").search(text)
    capabilities, parent = _status_field("CapEff").search(text), _status_field("PPid").search(text)
    return Status(
        uid=int(uid[1]) if uid else _NO_LINE,
        state=state[1] if state else _NO_LINE,
        ipc_lock=bool(int(capabilities[1], 16) >> _CAP_IPC_LOCK & 1) if capabilities else _NO_LINE,
        parent=int(parent[1]) if parent else _NO_LINE,
        pinned_bytes=parse_pinned(text),
    )


def parse_thread_group(text: str) -> Maybe[int]:
    """Parse the pid of the process that a thread belongs to, from its status."""
    group = _status_field("Tgid").search(text)
    return int(group[1]) if group else _NO_LINE


def parse_pinned(text: str) -> Maybe[int]:
    """Parse VmPin of a status, in bytes; NOT_THERE as in Status."""
    pinned = _status_field("VmPin").search(text)
    return int(pinned[1]) * 1024 if pinned else _NO_PINNED


def is_overwritten(content: bytes) -> bool:
    """Return whether a program has cleared its environment area, as setproctitle does for a title."""
    return bool(content) and not content.strip(b"\0")


def parse_environment(content: bytes) -> dict[str, str]:
    """Parse NUL-terminated `NAME=value` strings; keep only known variables, values up to 256 characters."""
    found: dict[str, str] = {}
    for piece in content.split(b"\0"):
        name, equals, value = piece.partition(b"=")
        if not equals or len(name) > 64 or len(found) >= _MAX_VARIABLES:
            continue
        key = name.decode("utf-8", "replace")
        if (key.startswith(FAMILIES) or key in SINGLES) and re.fullmatch(r"[A-Z][A-Za-z0-9_]{1,63}", key):
            found[key] = printable(value.decode("utf-8", "replace"), _VALUE_LIMIT)
    return found


def parse_maps(content: bytes) -> tuple[MappedLibrary, ...]:
    """Return the GPU and RDMA libraries among the mapped files, each once, in address order.

    The kernel appends " (deleted)" to the name of a file that has been replaced on disk.
    """
    found: dict[str, MappedLibrary] = {}
    for line in content.split(b"\n"):
        if b".so" not in line:
            continue
        words = line.decode("utf-8", "replace").split(None, 5)
        path = words[5].removesuffix(" (deleted)") if len(words) == 6 else ""
        match = _LIBRARIES.search(path)
        if match is None or path in found or len(path) > 1024:
            continue
        version = match["version"] or ""
        # "libnccl.so.2" has only the version of the interface, and so has "libucp.so.0.0.0".
        known_version: Maybe[str] = version
        if "." not in version or match["name"] == "libucp":
            known_version = Unknown(Reason.NOT_THERE, printable(path, 256), "no version in the file name")
        found[path] = MappedLibrary(match["name"], printable(path, 256), known_version)
    return tuple(found.values())
