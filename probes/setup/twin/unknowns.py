"""What no twin can know: what a module brings that was not loaded when the twin was made."""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.unknown import Reason, Unknown

# Paths that appear with a module, or whose content changes with it.
_PATHS = {
    "nvidia": ("/proc/driver/nvidia", "/sys/module/nvidia/parameters", "/dev/nvidia"),
    "nvidia_uvm": ("/sys/module/nvidia_uvm/parameters",),
    "nvidia_peermem": ("/sys/kernel/mm/memory_peers",),
    "nv_peer_mem": ("/sys/kernel/mm/memory_peers",),
    "mlx5_core": ("/sys/class/net", "/sys/class/infiniband", "/sys/module/mlx5_core/parameters"),
    "mlx5_ib": ("/sys/class/infiniband", "/dev/infiniband"),
    "mlx4_core": ("/sys/class/net", "/sys/class/infiniband"),
    "mlx4_ib": ("/sys/class/infiniband", "/dev/infiniband"),
    "efa": ("/sys/class/infiniband", "/dev/infiniband"),
    "cxi_ss1": ("/sys/class/cxi", "/dev/cxi"),
    "cxi_user": ("/dev/cxi",),
    "ib_uverbs": ("/sys/class/infiniband_verbs", "/dev/infiniband"),
    "rdma_cm": ("/dev/infiniband/rdma_cm",),
    "gdrdrv": ("/dev/gdrdrv",),
}
# Devices below /sys/devices that a driver creates, and the link to the driver.
_OF_DEVICES = {
    "mlx5_core": ("/infiniband", "/net", "/driver"),
    "mlx5_ib": ("/infiniband",),
    "mlx4_core": ("/infiniband", "/net", "/driver"),
    "mlx4_ib": ("/infiniband",),
    "efa": ("/infiniband", "/driver"),
    "cxi_ss1": ("/cxi", "/net", "/driver"),
    "nvidia": ("/driver",),
}
_ANSWERS = {
    "nvml": ("nvidia",),
    "cuda": ("nvidia", "nvidia_uvm"),
    "dmabuf": ("mlx5_core", "mlx5_ib", "mlx4_core", "mlx4_ib", "ib_uverbs", "ib_core", "efa"),
    "rdma": ("ib_core", "mlx5_ib", "mlx4_ib", "efa"),
}


def unknown_path(path: str, new_modules: Iterable[str]) -> Unknown | None:
    """Return why a path is unknown after these modules were loaded on the twin; None: it is not."""
    for module in new_modules:
        if path.startswith(_PATHS.get(module, ())):
            return not_known(path, module)
        if path.startswith("/sys/devices/") and any(
            f"{part}/" in f"{path}/" for part in _OF_DEVICES.get(module, ())
        ):
            return not_known(path, module)
    return None


def unknown_answer(kind: str, new_modules: Iterable[str]) -> Unknown | None:
    """Return why an answer ("nvml", "cuda", "dmabuf", "rdma") is unknown after these modules were loaded."""
    for module in new_modules:
        if module in _ANSWERS[kind]:
            return not_known(kind, module)
    return None


def not_known(source: str, module: str) -> Unknown:
    """Return that only the loaded module shows this."""
    return Unknown(Reason.NOT_YET, source, f"only known once {module} is loaded")
