"""Faults of area tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.facts.system.tool_names import PERFTEST
from probes.simulation.faults.fault import Fault
from probes.simulation.node.description import NodeDescription
from probes.simulation.node.network import SOCKETS, listening
from probes.simulation.node.processes import add_rank, default_libraries, library_directory
from probes.simulation.node.tree import Tree

_OLD_VERBS = "libibverbs.so.1.11.32.0"


def _fault(name: str, spoil: Callable[[Tree], None], *excludes: str) -> Fault:
    return Fault(name, frozenset({name}), spoil=spoil, excludes=frozenset(excludes))


def _no_perftest(tree: Tree) -> None:
    for name in PERFTEST:
        tree.remove(f"/usr/bin/{name}")


def _perftest(program: bytes) -> Callable[[Tree], None]:
    def spoil(tree: Tree) -> None:
        for name in PERFTEST:
            tree.add(f"/usr/bin/{name}", program)

    return spoil


def _no_link(tree: Tree) -> None:
    tree.remove(f"{library_directory(tree)}/libcuda.so")


def _old_verbs(tree: Tree) -> None:
    place = "/usr/local/lib"
    tree.add(f"{place}/{_OLD_VERBS}", "")
    tree.link(f"{place}/libibverbs.so.1", _OLD_VERBS)


def _old_verbs_in_job(tree: Tree) -> None:
    mapped = [path for path in default_libraries(tree) if "libibverbs" not in path]
    add_rank(tree, 45000, libraries=[*mapped, f"/opt/image/lib/{_OLD_VERBS}"])


def _no_provider(tree: Tree) -> None:
    tree.remove(f"{library_directory(tree)}/libmlx5.so.1")


def _no_gdrdrv(description: NodeDescription) -> NodeDescription:
    modules = description.modules
    live = tuple(name for name in modules.live if name != "gdrdrv")
    return replace(description, modules=replace(modules, live=live, on_disk=(*modules.on_disk, "gdrdrv")))


def _library_alone(tree: Tree) -> None:
    place = library_directory(tree)
    tree.add(f"{place}/libgdrapi.so.2.5", "")
    tree.link(f"{place}/libgdrapi.so.2", "libgdrapi.so.2.5")


def _no_gdrdrv_file(tree: Tree) -> None:
    tree.remove("/dev/gdrdrv")


def _port_taken(tree: Tree) -> None:
    tree.add("/proc/net/tcp", f"{SOCKETS}{listening(22)}{listening(18515)}")


_OTHER_PROGRAMS = ("perftest-missing", "perftest-without-cuda", "perftest-without-dmabuf")

FAULTS: tuple[Fault, ...] = (
    _fault("perftest-missing", _no_perftest, "perftest-without-cuda", "perftest-without-dmabuf"),
    _fault("perftest-without-cuda", _perftest(b"\x7fELF\0ibv_reg_mr\0"), *_OTHER_PROGRAMS[::2]),
    _fault(
        "perftest-without-dmabuf", _perftest(b"\x7fELF\0libcuda.so.1\0ibv_reg_mr\0"), *_OTHER_PROGRAMS[:2]
    ),
    _fault("libcuda-link-missing", _no_link, *_OTHER_PROGRAMS),
    _fault("rdma-core-without-dmabuf", _old_verbs),
    _fault("old-userspace-abi", _old_verbs_in_job),
    _fault("libibverbs-missing", _no_provider),
    replace(_fault("gdrdrv-missing", _library_alone), describe=_no_gdrdrv),
    _fault("gdrdrv-device-missing", _no_gdrdrv_file, "gdrdrv-missing"),
    _fault("perftest-port-in-use", _port_taken),
)
