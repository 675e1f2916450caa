"""The parts of an inference stack in a process: engine, framework, and its role in serving."""

from __future__ import annotations

from typing import NamedTuple

from probes.base.evidence import Evidence
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.processes import Process
from probes.live.model.sample import Role
from probes.live.model.transfer import Serving, ServingRole


class Engine(NamedTuple):
    """What moves KV caches, and the library that a process maps for it."""

    name: str
    library: str
    is_ucx: bool = False  # UCX chooses the transport
    role: Role | None = None  # only processes of this role: PyTorch's images map UCX without using it


ENGINES = (
    Engine("NIXL over UCX", "libplugin_UCX", is_ucx=True),
    Engine("NIXL over libfabric", "libplugin_LIBFABRIC"),
    Engine("NIXL over UCCL", "libplugin_UCCL"),
    Engine("NIXL over GPUNETIO", "libplugin_GPUNETIO"),
    Engine("NIXL over Mooncake", "libplugin_Mooncake"),
    Engine("Mooncake", "mooncake/engine"),
    Engine("UCX", "libucp", is_ucx=True, role=Role.UCX),
)
"""The first one that a process maps counts.

ai-dynamo/nixl, src/plugins: each is a library of this name; kvcache-ai/Mooncake, mooncake-wheel;
NVIDIA/TensorRT-LLM, cpp/tensorrt_llm/executor/cache_transmission: UCX without NIXL.
"""


class Framework(NamedTuple):
    """An inference server, by the begin of the name of a process or of its program."""

    begin: str
    name: str
    api_port: int  # where it answers requests, unless --port names another one
    role: ServingRole | None = None


FRAMEWORKS = (
    Framework("VLLM::", "vLLM", 8000),
    Framework("vllm", "vLLM", 8000),
    Framework("sglang", "SGLang", 30000),
    Framework("dynamo.vllm", "Dynamo, vLLM", 8000),
    Framework("dynamo.sglang", "Dynamo, SGLang", 8000),
    Framework("dynamo.trtllm", "Dynamo, TensorRT-LLM", 8000),
    Framework("dynamo.frontend", "Dynamo", 8000, ServingRole.ROUTER),
    Framework("trtllm", "TensorRT-LLM", 8000),
)
"""vllm-project/vllm, vllm/utils/system_utils.py (set_process_title); sgl-project/sglang,
python/sglang/srt/managers/scheduler.py; ai-dynamo/dynamo, components; NVIDIA/TensorRT-LLM,
tensorrt_llm/commands/serve.py."""

_ROLES = {"prefill": ServingRole.PREFILL, "decode": ServingRole.DECODE}
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"
_MODE, _CONNECTOR = "disaggregation-mode", "kv_connector"
_NO_ENGINE = Unknown(Reason.NOT_THERE, "/proc/PID/maps", "no library that moves KV caches")
# vLLM, docs/features/nixl_connector_usage.md: kv_role does not affect NixlConnector; the proxy decides.
_PROXY_DECIDES = Unknown(
    Reason.NOT_THERE, "command line", "the proxy decides; vLLM's kv_role does not say it"
)
_NO_OPTION = Unknown(Reason.NOT_THERE, "command line", f"no --{_MODE}")


def serving_of(process: Process, role: Role) -> Serving | None:
    """Return the parts of an inference stack in a process; None: it has none."""
    engine = engine_of(process, role)
    framework = framework_of(process)
    if engine is None and framework is None:
        return None
    evidence = []
    name: Maybe[str] = _NO_ENGINE
    if engine is not None:
        name = engine.name
        path = next(each.path for each in known(process.libraries, ()) if each.name == engine.library)
        evidence.append(Evidence(f"/proc/{process.pid}/maps", path))
    elif isinstance(process.libraries, Unknown):
        name = process.libraries
    connector = process.serving_options.get(_CONNECTOR, "")
    frameworks = [framework.name] if framework else []
    frameworks += ["LMCache"] if connector.startswith("LMCache") else []
    if framework is not None:
        evidence.append(Evidence(f"/proc/{process.pid}/comm", known(process.comm, "")))
    mode = process.serving_options.get(_MODE, "")
    if mode:
        evidence.append(Evidence(f"/proc/{process.pid}/cmdline", f"--{_MODE} {mode}"))
    found: Maybe[ServingRole] = _PROXY_DECIDES if "vLLM" in frameworks else _NO_OPTION
    found = _ROLES.get(mode, found)
    if framework is not None and framework.role is not None:
        found = framework.role
    return Serving(name, ", ".join(frameworks), found, evidence=tuple(evidence))


def engine_of(process: Process, role: Role) -> Engine | None:
    """Return what moves the KV caches of a process; None: nothing that is mapped, or visible."""
    libraries = known(process.libraries, ())
    if not libraries:
        return None
    names = {library.name for library in libraries}
    return next((row for row in ENGINES if row.library in names and row.role in (None, role)), None)


def framework_of(process: Process) -> Framework | None:
    """Return the inference server that a process is part of, by its names."""
    for name in (known(process.program, ""), known(process.comm, "")):
        found = next((row for row in FRAMEWORKS if name.startswith(row.begin)), None)
        if found is not None:
            return found
    return None


def api_port(process: Process) -> int | None:
    """Return the port on which a process or its server answers requests, whose bytes are no KV caches."""
    named = process.serving_options.get("port", "")
    if named:
        return int(named)
    framework = framework_of(process)
    return None if framework is None else framework.api_port
