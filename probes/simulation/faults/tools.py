"""Faults of tools and libraries."""

from __future__ import annotations

from probes.facts.system.tool_names import PERFTEST
from probes.simulation.faults.fault import Faults, add_file, add_link, change_fields, fault, remove_path
from probes.simulation.node.devices.network import SOCKETS, listening
from probes.simulation.node.jobs.processes import add_rank, default_libraries, library_directory
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Tree

_OLD_VERBS = "libibverbs.so.1.11.32.0"

_PROGRAMS = tuple(f"/usr/bin/{name}" for name in PERFTEST)

FAULTS = Faults()


@FAULTS.fault("old-userspace-abi", "A job's image has an old libibverbs")
def _old_verbs_in_job(tree: Tree) -> None:
    mapped = [path for path in default_libraries(tree) if "libibverbs" not in path]
    add_rank(tree, 45000, libraries=[*mapped, f"/opt/image/lib/{_OLD_VERBS}"])


def _no_gdrdrv(description: NodeDescription) -> NodeDescription:
    modules = description.modules
    live = tuple(name for name in modules.live if name != "gdrdrv")
    return change_fields(modules={"live": live, "on_disk": (*modules.on_disk, "gdrdrv")})(description)


@FAULTS.fault(
    "gdrdrv-missing", "GDRCopy is installed without its driver gdrdrv", change_description=_no_gdrdrv
)
def _library_alone(tree: Tree) -> None:
    place = library_directory(tree)
    tree.add(f"{place}/libgdrapi.so.2.5", "")
    tree.link(f"{place}/libgdrapi.so.2", "libgdrapi.so.2.5")


_OTHER_PROGRAMS = ("perftest-missing", "perftest-without-cuda", "perftest-without-dmabuf")

# fmt: off
FAULTS += (
    fault("perftest-without-cuda", "perftest is built without CUDA",
          *(add_file(path, b"\x7fELF\0ibv_reg_mr\0") for path in _PROGRAMS), excludes=_OTHER_PROGRAMS[::2]),
    fault("perftest-without-dmabuf", "perftest is built without DMA-BUF",
          *(add_file(path, b"\x7fELF\0libcuda.so.1\0ibv_reg_mr\0") for path in _PROGRAMS),
          excludes=_OTHER_PROGRAMS[:2]),
    fault("libcuda-link-missing", "The symlink libcuda.so is missing",
          lambda tree: tree.remove(f"{library_directory(tree)}/libcuda.so"), excludes=_OTHER_PROGRAMS),
    fault("libibverbs-missing", "The libibverbs provider for these NICs is not installed",
          lambda tree: tree.remove(f"{library_directory(tree)}/libmlx5.so.1")),
    fault("gdrdrv-device-missing", "/dev/gdrdrv is missing",
          remove_path("/dev/gdrdrv"), excludes=("gdrdrv-missing",)),
    fault("perftest-port-in-use", "A program is listening on perftest's port 18515",
          add_file("/proc/net/tcp", f"{SOCKETS}{listening(22)}{listening(18515)}")),
    fault("perftest-missing", "perftest is not installed", remove_path(*_PROGRAMS),
          excludes=_OTHER_PROGRAMS[1:]),
    fault("rdma-core-without-dmabuf", "An old libibverbs is installed in /usr/local/lib",
          add_file(f"/usr/local/lib/{_OLD_VERBS}", ""),
          add_link("/usr/local/lib/libibverbs.so.1", _OLD_VERBS)),
)
