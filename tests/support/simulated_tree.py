"""Write a simulated node's tree to a directory, from which LocalHost can read it."""

from __future__ import annotations

from pathlib import Path

from probes.facts.pci.functions import parse_uevent
from probes.facts.system import numa
from probes.facts.system.numa import NumaFacts, parse_list
from probes.simulation.host import SimulatedHost


def write_tree(host: SimulatedHost, directory: Path) -> None:
    """Write all files as they are now, links and empty directories."""
    for path in host.tree.directories:
        if path not in host.tree.links:
            (directory / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path in host.tree.files:
        content = host.read_bytes(path, 1 << 30)
        assert isinstance(content, bytes)
        (directory / path.lstrip("/")).write_bytes(content)
    for path, target in host.tree.links.items():
        (directory / path.lstrip("/")).symlink_to(target)


def write_cpus(host: SimulatedHost, directory: Path) -> None:
    """Write the CPUs that lstopo needs: one core each, one package per NUMA node; no caches."""
    base = directory / "sys/devices/system/cpu"
    nodes = numa.probe(host)
    assert isinstance(nodes, NumaFacts)
    cpus = {cpu: node.number for node in nodes.nodes for cpu in parse_list(str(node.cpulist)) or ()}
    words = -(-(max(cpus) + 1) // 32)

    def cpumap(numbers: list[int]) -> str:
        bits = sum(1 << number for number in numbers)
        return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words))) + "\n"

    packages = {
        node.number: [cpu for cpu, near in cpus.items() if near == node.number] for node in nodes.nodes
    }
    base.mkdir(parents=True, exist_ok=True)
    for name in ("online", "possible", "present"):
        (base / name).write_text(f"0-{max(cpus)}\n")
    for cpu, package in cpus.items():
        topology = base / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{cpu}\n")
        (topology / "thread_siblings").write_text(cpumap([cpu]))
        (topology / "core_siblings").write_text(cpumap(packages[package]))
    for number, near in packages.items():
        (directory / f"sys/devices/system/node/node{number}/cpumap").write_text(cpumap(near))
    (directory / "proc/cpuinfo").write_text("")


def write_functions(directory: Path) -> None:
    """Write the files of PCI functions that Linux has and gdrtop does not read, from their uevent."""
    for place in (directory / "sys/bus/pci/devices").iterdir():
        event = parse_uevent((place / "uevent").read_text())
        vendor, device = event["PCI_ID"].split(":")
        of_board = event["PCI_SUBSYS_ID"].split(":")
        class_code = int(event["PCI_CLASS"], 16)
        numbers = (int(vendor, 16) | int(device, 16) << 16, 0, class_code << 8)
        files = {
            "config": b"".join(number.to_bytes(4, "little") for number in numbers).ljust(256, b"\0"),
            "class": f"0x{class_code:06x}\n".encode(),
            "vendor": f"0x{vendor.lower()}\n".encode(),
            "device": f"0x{device.lower()}\n".encode(),
            "subsystem_vendor": f"0x{of_board[0].lower()}\n".encode(),
            "subsystem_device": f"0x{of_board[1].lower()}\n".encode(),
        }
        for name, content in files.items():
            if not (place / name).exists():
                (place / name).write_bytes(content)
