"""The libraries and test tools of a simulated node."""

from __future__ import annotations

from probes.facts.system.tool_names import GDRCOPY, PERFTEST, programs_of
from probes.simulation.node.packages import grow_packages
from probes.simulation.node.processes import NCCL_VERSION, library_directory
from probes.simulation.node.tree import Tree

# What perftest of 2025 with CUDA has in it: it opens libcuda.so by this name, takes a PCI address and IPv6.
PERFTEST_PROGRAM = (
    b"\x7fELF\0libcuda.so\0cuMemGetHandleForAddressRange\0ibv_reg_dmabuf_mr\0use_cuda\0use_cuda_bus_id\0"
    b"use_cuda_dmabuf\0ipv6-addr\0"
)
_BUILT_HERE = "/usr/local/bin"
_PLACES = {"gdrcopy": "/usr/bin"}  # from NVIDIA's repository; it has no package of the others
_PACKAGES = {f"/usr/bin/{name}": ("gdrcopy-tests", "2.5-1") for name in GDRCOPY}

SOCKETS = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def grow_software(tree: Tree) -> None:
    """Adds perftest with CUDA and DMA-BUF, other tests, some tools, and the libraries that jobs load."""
    for name in PERFTEST:
        tree.add(f"/usr/bin/{name}", PERFTEST_PROGRAM)
        tree.commands.setdefault(name, lambda argv, seconds: "Version: 6.23\n")
    for package in tree.description.tests:
        for name in programs_of(package):
            tree.add(f"{_PLACES.get(package, _BUILT_HERE)}/{name}", b"\x7fELF")
    grow_packages(tree, _PACKAGES)
    for name in ("numactl", "lspci", "ibv_devinfo", "ethtool"):
        tree.add(f"/usr/bin/{name}", "")
    place = library_directory(tree)
    tree.add("/proc/net/tcp", f"{SOCKETS}{listening(22)}")
    tree.add("/proc/net/tcp6", SOCKETS)
    for soname, file in (
        ("libnccl.so.2", f"libnccl.so.{NCCL_VERSION}"),
        ("libibverbs.so.1", "libibverbs.so.1.14.39.0"),
        ("libmlx5.so.1", "libmlx5.so.1.24.39.0"),
        *((("libgdrapi.so.2", "libgdrapi.so.2.5"),) if "gdrdrv" in tree.live_modules else ()),
    ):
        tree.add(f"{place}/{file}", "")
        tree.link(f"{place}/{soname}", file)


def listening(port: int) -> str:
    """A line of /proc/net/tcp."""
    return f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n"
