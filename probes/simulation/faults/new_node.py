"""The node before its setup: the distribution is installed, and nothing of NVIDIA's."""

from __future__ import annotations

from probes.facts.system.tool_names import PROGRAMS
from probes.simulation.faults.fault import Faults
from probes.simulation.faults.modules import take_driver_from_disk
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.loading import remove_modules

FAULTS = Faults()

# From those that use others to those that are used.
_MODULES = (
    *("nvidia_fs", "gdrdrv", "efa_nv_peermem", "nvidia_peermem"),
    *("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia"),
)
_DIRECTORIES = ("/proc/driver/nvidia", "/dev/nvidia", "/etc/modules-load.d/nvidia", "/usr/share/nvidia")
_NAMES = (
    *(
        "libcuda.so",
        "libnvidia-",
        "libgdrapi",
        "libnccl",
        "nvidia-smi",
        "nv-fabricmanager",
        "nvidia-modprobe",
    ),
    *("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex", "nvidia-dcgm", "nv-hostengine", "nvlsm"),
    *(program.name for program in PROGRAMS),
)


@FAULTS.fault(
    "new-node",
    "Nothing is installed yet: no NVIDIA driver, no Fabric Manager, no benchmark tools",
    finds=("nvidia-not-loaded", "perftest-missing"),
)
def _nothing_installed(tree: Tree) -> None:
    from probes.simulation.commands.boot import end_programs

    end_programs(tree)
    remove_modules(tree, *(name for name in _MODULES if name in tree.live_modules))
    take_driver_from_disk(tree)
    for path in list(tree.files):
        name = path.rpartition("/")[2]
        if path.startswith(_DIRECTORIES) or name.startswith(_NAMES):
            tree.remove(path)
