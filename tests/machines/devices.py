"""GPUs as nvidia-smi prints them and RDMA ports as sysfs and tools show them, against the texts."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from probes.base.unknown import Maybe, Unknown
from probes.facts.rdma import devices as rdma
from probes.facts.rdma.devices import RdmaFacts
from probes.host.machine.local import LocalHost
from probes.host.nvml import NvmlFacts, NvmlGpu
from probes.host.remote.nvidia_smi import parse_facts, with_nvlinks
from probes.nccl.log.facts import Place
from probes.read import ports
from probes.read.nvidia_smi import read_query
from probes.read.pasted_host import PastedHost
from probes.read.reading import Parsed, Section
from tests.machines.compared import Compared, compare

_MIB = 1 << 20
# What is compared of a GPU, and where -q and -q -x have it: the first one behind these words.
_IN_TEXT = {
    "name": r"Product Name +: (.+)",
    "UUID": r"GPU UUID +: (\S+)",
    "memory": r"(?m:^)    FB Memory Usage\n +Total +: (\d+) MiB",
    "BAR1": r"(?m:^)    BAR1 Memory Usage\n +Total +: (\d+) MiB",
    "MIG": r"MIG Mode\n +Current +: (Enabled|Disabled)",
    "persistence": r"Persistence Mode +: (Enabled|Disabled)",
}
_IN_XML = {
    "name": r"<product_name>(.+?)</product_name>",
    "UUID": r"<uuid>(.+?)</uuid>",
    "memory": r"<fb_memory_usage>\s*<total>(\d+) MiB",
    "BAR1": r"<bar1_memory_usage>\s*<total>(\d+) MiB",
    "MIG": r"<current_mig>(Enabled|Disabled)<",
    "persistence": r"<persistence_mode>(Enabled|Disabled)<",
}


def smi_xml(path: Path) -> Compared:
    """Compare nvidia-smi -q -x, as gdrtop reads it on other nodes, with its elements."""
    text = path.read_text(errors="replace")
    facts = parse_facts(text)
    whole_gpus = re.sub(r"<mig_devices>.*?</mig_devices>", "", text, flags=re.S)
    blocks = re.split(r"<gpu id=\"", whole_gpus)[1:]
    return _compare_gpus({block.partition('"')[0]: block for block in blocks}, _IN_XML, facts)


def smi_query(path: Path) -> Compared:
    """Compare the first nvidia-smi -q of a text with its lines."""
    text = path.read_text(errors="replace")
    start = text.index("==NVSMI LOG==")
    end = text.find("####", start)
    text = text[start : end if end > 0 else len(text)]
    blocks = re.split(r"^GPU (?=[0-9A-F]{8}:)", text, flags=re.M)[1:]
    parsed = read_query(Section("nvidia-smi -q", tuple(text.splitlines()), Place("smi", 1)))
    facts = parsed.answers[("nvml",)]
    assert isinstance(facts, NvmlFacts)
    return _compare_gpus({block.partition("\n")[0]: block for block in blocks}, _IN_TEXT, facts)


def nvlinks(path: Path) -> Compared:
    """Compare the active NVLinks of each GPU with the lines of nvidia-smi nvlink --status."""
    text = path.read_text(errors="replace")
    blocks = re.split(r"^GPU \d+: ", text, flags=re.M)[1:]
    gpus = tuple(_gpu(number) for number in range(len(blocks)))
    facts = with_nvlinks(NvmlFacts(_NOTHING, _NOTHING, gpus), text)
    return compare(
        {f"GPU{number}": block.count(" GB/s") for number, block in enumerate(blocks)},
        {f"GPU{gpu.index}": gpu.nvlinks for gpu in facts.gpus if isinstance(gpu, NvmlGpu)},
    )


def ports_of_text(path: Path) -> Compared:
    """Compare ports in ibstat, ibv_devinfo and rdma link with their lines."""
    text = path.read_text(errors="replace")
    reader, blocks = _tool_of(text)
    parsed = reader(Section("ports", tuple(text.splitlines()), Place("ports", 1)))
    truth = {name: dict(_lines_of(block)) for name, block in blocks}
    facts = rdma.probe(PastedHost(parsed.answers))
    assert isinstance(facts, RdmaFacts)
    return _compare_ports(truth, facts)


def ports_of_tree(archive: Path) -> Compared:
    """Compare ports that gdrtop reads in a copy of /sys/class/infiniband with its files."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as tree:
        tree.extractall(folder)
        (own,) = Path(folder).iterdir()
        root = Path(folder) / "root"
        (root / "sys/class").mkdir(parents=True)
        own.rename(root / "sys/class/infiniband")
        truth = {path.name: dict(_files_of(path)) for path in (root / "sys/class/infiniband").iterdir()}
        facts = rdma.probe(LocalHost(str(root)))
        assert isinstance(facts, RdmaFacts)
        return _compare_ports(truth, facts)


_NOTHING: Maybe[str] = "none"


def _gpu(number: int) -> NvmlGpu:
    return NvmlGpu(number, f"0000:{number:02x}:00.0", "", "", (0, 0), 0, 0, 0, (), 0, False, False)


def _compare_gpus(blocks: dict[str, str], fields: dict[str, str], facts: Maybe[NvmlFacts]) -> Compared:
    assert isinstance(facts, NvmlFacts)
    result = Compared(0)
    for bus, block in blocks.items():
        bdf = bus.strip().lower()[4:]
        matches = {name: re.search(pattern, block) for name, pattern in fields.items()}
        truth = {(bdf, name): _plain(match[1].strip()) for name, match in matches.items() if match}
        gpu = next((gpu for gpu in facts.gpus if isinstance(gpu, NvmlGpu) and gpu.bdf == bdf), None)
        if "GPU is lost" in block:
            result += compare({(bdf, "state"): "lost"}, {(bdf, "state"): "lost" if gpu is None else "there"})
            continue
        result += compare(truth, dict(_facts_of(gpu, bdf, truth)) if gpu else {})
    return result


def _plain(word: str) -> object:
    switch = {"Enabled": True, "Disabled": False}
    return int(word) * _MIB if word.isdigit() else switch.get(word, word)


def _facts_of(gpu: NvmlGpu, bdf: str, asked: Iterable[object]) -> Iterator[tuple[tuple[str, str], object]]:
    values = {
        **{"name": gpu.name, "UUID": gpu.uuid, "memory": gpu.memory_total_bytes},
        **{"BAR1": gpu.bar1_total_bytes, "MIG": gpu.mig, "persistence": gpu.persistence},
    }
    for name, value in values.items():
        if (bdf, name) in asked or not isinstance(value, Unknown):
            yield (bdf, name), value


def _tool_of(text: str) -> tuple[Callable[[Section], Parsed], list[tuple[str, str]]]:
    if "CA '" in text:
        return ports.read_ibstat, _split(text, r"^CA '([\w.-]+)'")
    if "hca_id:" in text:
        return ports.read_devinfo, _split(text, r"^hca_id:\s*(\S+)")
    return ports.read_rdma_link, _split(text, r"^link ([\w.-]+)/\d+")


def _split(text: str, head: str) -> list[tuple[str, str]]:
    parts = re.split(head, text, flags=re.M)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _lines_of(block: str) -> Iterator[tuple[str, object]]:
    state = re.search(r"\b[Ss]tate:?\s+(?:PORT_)?(\w+)", block)
    if state:
        yield "state", {"INITIALIZING": "INIT"}.get(state[1].upper(), state[1].upper())
    if physical := re.search(r"[Pp]hysical[ _]state:?\s+(\w+)", block):
        yield "physical state", physical[1].replace("_", "").lower()
    if rate := re.search(r"Rate: (\d+)", block):
        yield "rate", float(rate[1])
    if layer := re.search(r"[Ll]ink[ _]layer:\s+(\w+)", block):
        yield "link layer", layer[1]


def _files_of(device: Path) -> Iterator[tuple[str, object]]:
    port = device / "ports/1"
    for name, file in (("state", "state"), ("physical state", "phys_state")):
        if (port / file).exists():
            word = (port / file).read_text().partition(": ")[2].strip()
            yield name, word.lower() if name == "physical state" else word
    if (port / "rate").exists():
        yield "rate", float((port / "rate").read_text().split()[0])
    if (port / "link_layer").exists():
        yield "link layer", (port / "link_layer").read_text().strip()


def _compare_ports(truth: dict[str, dict[str, object]], facts: RdmaFacts) -> Compared:
    result = Compared(0)
    for device in facts.devices:
        wanted = truth.pop(device.name, {})
        port = device.ports[0]
        values = {"state": port.state, "rate": port.rate_gbps, "link layer": port.link_layer}
        physical = port.physical_state
        values["physical state"] = physical if isinstance(physical, Unknown) else physical.lower()
        ours = {name: value for name, value in values.items() if name in wanted}
        result += compare(
            {(device.name, name): value for name, value in wanted.items()},
            {(device.name, name): value for name, value in ours.items()},
        )
    return result + compare(dict.fromkeys(truth, "there"), {})
