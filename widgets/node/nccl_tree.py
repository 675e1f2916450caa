"""A topology file of NCCL: its CPUs, switches, GPUs and NICs as a tree, and NCCL's words between them."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.text import plural, printable
from probes.nccl.topology_file import GPU_CLASS, Element, bus_id, endpoints_of, file_tree, is_endpoint
from probes.topology.nccl_paths import Nccl, pci_path
from widgets.base.lines import Line, Run, Tone, cut, line, wrapped

_TONES = {Nccl.PIX: Tone.GOOD, Nccl.PXB: Tone.GOOD, Nccl.PHB: Tone.WARNING, Nccl.SYS: Tone.BAD}
_NAME_CELLS = 16
_CELL = max(len(word.value) for word in _TONES) + 2


def draw(system: Element, width: int) -> list[Line]:
    """Draw the tree, and the matrix of GPUs and NICs over PCIe alone, as NCCL places them with this file."""
    names = names_of(system)
    gpus = [end for end in endpoints_of(system) if end.get("class").startswith(GPU_CLASS)]
    nics = [end for end in endpoints_of(system) if end not in gpus]
    cpus = list(system.named("cpu"))
    counted = (plural(len(cpus), "NUMA node"), plural(len(gpus), "GPU"), plural(len(nics), "NIC"))
    lines: list[Line] = wrapped(", ".join(counted), width)
    for cpu in cpus:
        facts = " ".join(filter(None, (cpu.get("arch"), cpu.get("vendor"))))
        numa = Run(f"NUMA {cpu.get('numaid') or '?'}", Tone.TITLE)
        lines.append(cut((numa, Run(f"  {facts}", Tone.DIM)), width))
        lines.extend(cut(drawn, width) for drawn in _below(cpu, names, ""))
    if gpus and nics:
        lines.extend([(), line("GPU × NIC, NCCL's terms over PCIe")])
        lines.extend(_matrix(system, gpus, nics, names, width))
    return lines


def names_of(system: Element) -> Mapping[str, str]:
    """Return short names by bus ID: GPU0 in the order of the file, RDMA names where the file has them."""
    names: dict[str, str] = {}
    gpus = nics = 0
    for end in endpoints_of(system):
        if end.get("class").startswith(GPU_CLASS):
            name, gpus = f"GPU{gpus}", gpus + 1
        else:
            nets = [net.get("name") for nic in end.named("nic") for net in nic.named("net")]
            name, nics = nets[0] if nets and nets[0] else f"NIC{nics}", nics + 1
        names.setdefault(bus_id(end), printable(name, _NAME_CELLS))
    return names


def _below(above: Element, names: Mapping[str, str], indent: str) -> list[Line]:
    """Return a line for each function below a CPU or a switch."""
    lines: list[Line] = []
    functions = list(above.named("pci"))
    for function in functions:
        is_last = function is functions[-1]
        bus = bus_id(function)
        name = names.get(bus, "") if is_endpoint(function) else "switch"
        speed = function.get("link_speed")
        nvlinks = (nvlink for gpu in function.named("gpu") for nvlink in gpu.named("nvlink"))
        counts = (nvlink.get("count") for nvlink in nvlinks)
        count = sum(int(text) for text in counts if text.isdecimal() and len(text) < 5)
        facts = (
            bus,
            f"{speed} x{function.get('link_width') or '?'}" if speed else "",
            plural(count, "NVLink") if count else "",
        )
        tone = Tone.LIT if is_endpoint(function) else Tone.PLAIN
        branch = f"{indent}{'└' if is_last else '├'} "
        shown = "".join(f"  {fact}" for fact in facts if fact)
        lines.append((Run(branch, Tone.DIM), Run(name, tone), Run(shown, Tone.DIM)))
        lines.extend(_below(function, names, f"{indent}{' ' if is_last else '│'} "))
    return lines


def _matrix(
    system: Element, gpus: list[Element], nics: list[Element], names: Mapping[str, str], width: int
) -> list[Line]:
    seats = file_tree("", system).seats
    labels = max(len(names[bus_id(end)]) for end in gpus)
    cell = max(_CELL, *(len(names[bus_id(end)]) + 1 for end in nics))
    across = max(1, (width - labels) // cell)
    lines: list[Line] = []
    for start in range(0, len(nics), across):
        block = nics[start : start + across]
        head = "".join(f" {names[bus_id(nic)]:<{cell - 1}}" for nic in block)
        lines.append((Run(f"{'':<{labels}}{head}", Tone.TITLE),))
        for gpu in gpus:
            words = [pci_path(seats[bus_id(gpu)], seats[bus_id(nic)]) for nic in block]
            cells = (Run(f" {word.value:<{cell - 1}}", _TONES[word]) for word in words)
            lines.append((Run(f"{names[bus_id(gpu)]:<{labels}}", Tone.TITLE), *cells))
    return lines
