"""A stand-in for ssh and a node behind it: it answers like the collector on a simulated node.

    python -m tests.support.stand_in 'gpu1=hgx-h100+acs-on;gpu2=dead' {host} sh -c COMMAND

Nodes that are not named are hgx-h100. Instead of a simulated node: dead, refusing, silent, noisy, flooding,
garbage, objects or names: the last two answer in few bytes that take much memory.
"""

import base64
import json
import os
import re
import resource
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from xml.sax.saxutils import escape

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.ethtool_socket import COUNT, HEADER, NAME_BYTES, STATS
from probes.host.machine.library_child import CUDA
from probes.host.nvml import NvmlGpu, NvmlLive
from probes.host.protocol import CudaGpu
from probes.host.remote.collector import GREETING
from probes.host.remote.nvidia_smi import CAPABILITIES, QUERY
from probes.host.remote.transport import pack, unpack_own
from probes.simulation.host import SimulatedHost

ERRNOS = {
    Reason.NOT_THERE: 2,
    Reason.NEEDS_ROOT: 13,
    Reason.NEEDS_PERMISSION: 1,
    Reason.TIMED_OUT: 110,
    Reason.IO_ERROR: 5,
    Reason.MALFORMED: 27,
}
MIB = 1 << 20
Answer = dict[str, Any]


def answer(host: SimulatedHost, question: list[Any]) -> Answer:
    """What the collector would answer on the simulated node."""
    kind, *subject = question
    try:
        return _answer(host, kind, subject)
    except (OSError, KeyError, IndexError) as error:
        return {"errno": 2, "detail": str(error)}


def _answer(host: SimulatedHost, kind: str, subject: list[Any]) -> Answer:
    match kind:
        case "file":
            return _told(host.read_bytes(*subject), lambda content: content.decode("latin-1"))
        case "file_range":
            found = host.read_range(*subject)
            return _told(found, lambda read: [read.content.decode("latin-1"), read.size_bytes, read.file])
        case "names":
            return _told(host.names(*subject), list)
        case "link" | "resolve" | "size" | "environment":
            return _told(getattr(host, kind)(*subject), lambda value: value)
        case "readable" | "writable":
            return _told(host.access(subject[0], kind == "writable"), lambda value: value)
        case "run":
            seconds, *argv = subject
            if argv[0] == "nvidia-smi":
                return {
                    "value": [0, smi_text(host) if tuple(argv) == QUERY else _more_of_smi(host, argv), "", 0]
                }
            output = host.run(argv, seconds)
            return _told(
                output, lambda told: [told.exit_status, told.stdout, told.stderr, told.left_out_bytes]
            )
        case "program":
            return {"value": [0, _program(host, subject[2:]), "", 0]}
        case "ethtool":
            content = _ethtool(host, *subject).rstrip(b"\0")
            return {"value": base64.b64encode(zlib.compress(content)).decode("ascii")}
        case "netlink":
            return {"errno": 93, "detail": "Protocol not supported"}
        case "kernel_log":
            return {"value": [-1, []]}
    raise OSError(f"no {kind} here")


def _told(found: Maybe[Any], convert: Any) -> Answer:
    if isinstance(found, Unknown):
        number = ERRNOS.get(found.reason, 5)
        return {"errno": number, "detail": found.detail or os.strerror(number)}
    return {"value": convert(found)}


def _program(host: SimulatedHost, arguments: list[str]) -> str:
    """What library_child.py prints."""
    if arguments[0] == "":  # trusted_path.py
        return arguments[1]
    if arguments[0] == CUDA:
        gpus = host.cuda_gpus()
        if isinstance(gpus, Unknown):
            return repr({"reason": gpus.reason.value, "detail": gpus.detail})
        return repr({"gpus": [{"bdf": gpu.bdf, "attributes": _attributes(gpu)} for gpu in gpus]})
    question, _, _, *devices = arguments
    found: Mapping[str, Maybe[Any]] = (
        host.dmabuf_errnos(devices) if "dmabuf" in question else host.data_direct_paths(devices)
    )
    rows = []
    for device, value in found.items():
        told = (
            {"reason": value.reason.value, "detail": value.detail}
            if isinstance(value, Unknown)
            else {"answer": value}
        )
        rows.append(repr((device, told)))
    return "\n".join(rows)


def _attributes(gpu: CudaGpu) -> list[tuple[int, int, int]]:
    values = (gpu.rdma_supported, gpu.dmabuf_supported)
    return [(0, 1, 0) if isinstance(value, Unknown) else (0, 0, int(value)) for value in values]


def _ethtool(host: SimulatedHost, name: str, command: str, more: int) -> bytes:
    counters = host.ethtool_counters([name])[name]
    if isinstance(counters, Unknown):
        raise OSError(counters.detail)
    (order,) = struct.unpack_from("=I", command.encode("latin-1"))
    if order == 0x37:
        return COUNT.pack(order, 0, 1 << 1, len(counters))
    if order == 0x1B:
        names = b"".join(counter.encode().ljust(NAME_BYTES, b"\0") for counter in counters)
        return (HEADER.pack(order, 1, len(counters)) + names).ljust(HEADER.size + more, b"\0")
    values = struct.pack(f"={len(counters)}Q", *counters.values())
    return (STATS.pack(order, len(counters)) + values).ljust(STATS.size + more, b"\0")


def smi_text(host: SimulatedHost) -> str:
    """What nvidia-smi -q -x prints."""
    facts, live = host.nvml(), host.nvml_live()
    if isinstance(facts, Unknown):
        raise OSError(facts.detail)
    readings = {} if isinstance(live, Unknown) else {reading.bdf: reading for reading in live}
    gpus = [
        f'<gpu id="{gpu.source}"><product_name>GPU is lost</product_name></gpu>'
        if isinstance(gpu, Unknown)
        else _smi_gpu(gpu, readings.get(gpu.bdf))
        for gpu in facts.gpus
    ]
    version, cuda = _tag("driver_version", facts.driver_version), _tag("cuda_version", facts.cuda_version)
    return f'<?xml version="1.0" ?><nvidia_smi_log>{version}{cuda}{"".join(gpus)}</nvidia_smi_log>'


def _more_of_smi(host: SimulatedHost, argv: Sequence[str]) -> str:
    """What nvidia-smi --query-gpu=pci.bus_id,compute_cap and nvidia-smi nvlink --status print."""
    facts = host.nvml()
    lines: list[str] = []
    for gpu in () if isinstance(facts, Unknown) else facts.gpus:
        if isinstance(gpu, Unknown):
            continue
        if tuple(argv) == CAPABILITIES:
            if not isinstance(gpu.compute_capability, Unknown):
                lines.append(f"0000{gpu.bdf.upper()}, {'.'.join(map(str, gpu.compute_capability))}")
        else:
            links = 0 if isinstance(gpu.nvlinks, Unknown) else gpu.nvlinks
            lines += [f"GPU {gpu.index}: NVIDIA", *(f"\t Link {link}: 26.562 GB/s" for link in range(links))]
    return "\n".join(lines)


def _smi_gpu(gpu: NvmlGpu, live: NvmlLive | None) -> str:
    def mib(value: Maybe[int]) -> Maybe[str]:
        return value if isinstance(value, Unknown) else f"{value // MIB} MiB"

    def enabled(value: Maybe[bool]) -> Maybe[str]:
        return value if isinstance(value, Unknown) else ("Enabled" if value else "Disabled")

    link = (
        f"<pcie_gen>{_tag('device_current_link_gen', live.link_generation) if live else ''}</pcie_gen>"
        f"<link_widths>{_tag('current_link_width', live.link_width, 'x') if live else ''}</link_widths>"
    )
    parts = [
        _tag("product_name", gpu.name),
        _tag("uuid", gpu.uuid),
        _tag("serial", gpu.serial),
        "<gpu_virtualization_mode><virtualization_mode>None</virtualization_mode></gpu_virtualization_mode>",
        _tag("persistence_mode", enabled(gpu.persistence)),
        f"<mig_mode>{_tag('current_mig', enabled(gpu.mig))}</mig_mode>",
        _tag("c2c_mode", "Enabled" if gpu.c2c_links and gpu.c2c_links > 0 else "Disabled")
        if not isinstance(gpu.c2c_links, Unknown)
        else "",
        f"<fb_memory_usage>{_tag('total', mib(gpu.memory_total_bytes))}</fb_memory_usage>",
        f"<bar1_memory_usage>{_tag('total', mib(gpu.bar1_total_bytes))}</bar1_memory_usage>",
        f"<pci><pci_gpu_link_info>{link}</pci_gpu_link_info></pci>",
    ]
    if not isinstance(gpu.fabric, Unknown):
        place = _tag("cliqueId", gpu.fabric_clique) + _tag("clusterUuid", gpu.fabric_cluster)
        parts.append(f"<fabric>{_tag('state', gpu.fabric.title())}{place}</fabric>")
    if live is not None:
        parts.append(f"<utilization>{_tag('gpu_util', live.utilization_percent, ' %')}</utilization>")
        parts.append(f"<temperature>{_tag('gpu_temp', live.temperature_celsius, ' C')}</temperature>")
        pids = () if isinstance(live.processes, Unknown) else live.processes
        infos = "".join(f"<process_info><pid>{pid}</pid><type>C</type></process_info>" for pid in pids)
        parts.append(f"<processes>{infos}</processes>")
    return f'<gpu id="0000{gpu.bdf.upper()}">{"".join(parts)}</gpu>'


def _tag(name: str, value: Maybe[Any], unit: str = "") -> str:
    return "" if isinstance(value, Unknown) else f"<{name}>{escape(str(value))}{unit}</{name}>"


def nodes_in(text: str) -> dict[str, str]:
    """The simulated nodes by name."""
    return dict(row.split("=", 1) for row in text.split(";") if "=" in row)


def answer_in_masses(what: str) -> NoReturn:
    """Answer with 63 MB of empty objects, or with 65,536 names for each directory."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # the limit of a test is for gdrtop
    names = json.dumps({"value": [f"n{number}" for number in range(65_536)]})
    while line := sys.stdin.buffer.readline():
        asked = unpack_own(line)["ask"]
        parts = [names if question[0] == "names" else '{"value": "1"}' for question in asked]
        text = ",".join(["{}"] * 21_000_000 if what == "objects" and asked else parts)
        content = f'{{"answers": [{text}], "monotonic": 5.0, "wall": 1e9}}'.encode()
        sys.stdout.buffer.write(base64.b64encode(zlib.compress(content, 1)) + b"\n")
        sys.stdout.buffer.flush()
    sys.exit()


def main(fleet: str, node: str, *command: str) -> None:
    """Be that node."""
    simulated = nodes_in(fleet).get(node, "hgx-h100")
    if simulated == "dead":
        sys.exit(f"ssh: Could not resolve hostname {node}: Name or service not known")
    if simulated == "refusing":
        sys.exit(f"root@{node}: Permission denied (publickey).")
    if simulated == "silent":
        sys.exit(len(sys.stdin.buffer.read()))
    out = sys.stdout.buffer
    if simulated == "flooding":
        while True:
            out.write(bytes(1 << 16).replace(b"\0", b"x"))
    size = re.search(r"read\(([0-9]+)\)", " ".join(command))
    assert size is not None
    sys.stdin.buffer.read(int(size[1]))
    if simulated == "noisy":
        out.write(b"Welcome to the cluster\n\x1b[31mmaintenance tonight\x1b[0m\n")
        simulated = "hgx-h100"
    out.write(f"\n{GREETING}\n".encode())
    if simulated == "garbage":
        out.write(b"\xff\xfe{]\n")
        out.flush()
        return
    out.write(pack({"kind": simulated.partition("+")[0], "is_root": True}))
    out.flush()
    if simulated in ("objects", "names"):
        answer_in_masses(simulated)
    host = SimulatedHost(simulated, seed=sum(node.encode()))
    while line := sys.stdin.buffer.readline():
        questions = unpack_own(line)["ask"]
        answers = [answer(host, question) for question in questions]
        out.write(pack({"answers": answers, "monotonic": host.monotonic(), "wall": host.wall_clock()}))
        out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
