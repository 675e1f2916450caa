"""Faults of area pcie: what stands between a GPU and a NIC on the bus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.simulation.faults.fault import Fault
from probes.simulation.node import config_space as config
from probes.simulation.node.description import NodeDescription, RootDescription
from probes.simulation.node.tree import Tree


def _nic(tree: Tree, name: str) -> str | None:
    """A NIC's BDF; None where another fault has taken it away."""
    return next((nic.bdf for nic in tree.nics if nic.name == name and _is_there(tree, nic.bdf)), None)


def _gpu(tree: Tree, number: int) -> str | None:
    gpus = tree.gpus
    return gpus[number].bdf if number < len(gpus) and _is_there(tree, gpus[number].bdf) else None


def _is_there(tree: Tree, bdf: str) -> bool:
    return f"{config.DEVICES}/{bdf}" in tree.links


def _above(tree: Tree, bdf: str) -> str:
    """The port above a function."""
    return config.real_path(tree, bdf).split("/")[-2]


def _set_register(
    of: Callable[[Tree], str | None], offset: int, value: int, mask: int
) -> Callable[[Tree], None]:
    """Changes bits in the configuration of one function."""

    def spoil(tree: Tree) -> None:
        bdf = of(tree)
        if bdf is not None:
            config.set_bits(tree, bdf, offset, value, mask)

    return spoil


def _set_link(of: Callable[[Tree], str | None], both: bool = True, **files: str) -> Callable[[Tree], None]:
    """Changes the link's files of a function and of the port above it, or of the port alone."""

    def spoil(tree: Tree) -> None:
        bdf = of(tree)
        if bdf is None:
            return
        for end in (bdf, _above(tree, bdf)):
            path = config.real_path(tree, end)
            for name, value in files.items():
                if both or end != bdf or name.startswith("current"):
                    tree.add(f"{path}/{name}", f"{value}\n")

    return spoil


def _ports_below_switches(tree: Tree) -> list[str]:
    """Downstream ports above GPUs and NICs."""
    ends = [*(gpu.bdf for gpu in tree.gpus), *(nic.bdf for nic in tree.nics)]
    ports = dict.fromkeys(_above(tree, bdf) for bdf in ends if _is_there(tree, bdf))
    # A root port's directory is two levels below /sys/devices, a downstream port's four.
    return [
        port for port in ports if config.real_path(tree, port).count("/") > len(("sys", "devices", "", ""))
    ]


def _acs_on(tree: Tree) -> None:
    for port in _ports_below_switches(tree):
        config.set_bits(tree, port, config.ACS_CONTROL, 0x1D, 0x1D)


def _direct_translated(tree: Tree) -> None:
    nic = _nic(tree, "mlx5_2")
    if nic is not None:
        config.set_bits(tree, _above(tree, nic), config.ACS_CONTROL, 0x5D, 0x5D)


def _ats_off(tree: Tree) -> None:
    for nic in tree.nics:
        config.set_bits(tree, nic.bdf, config.ATS_CONTROL, 0, 0x8000)


def _wrong_direct_nic(tree: Tree) -> None:
    """A ConnectX DMA function below the first GPU's root port, and rdma_topo, which does not like it."""
    port = config.real_path(tree, _above(tree, tree.gpus[0].bdf))
    bdf = f"{port.rpartition('/')[2][:5]}02:00.0"
    path = f"{port}/{bdf}"
    tree.add(f"{path}/uevent", f"PCI_CLASS=80100\nPCI_ID=15B3:2100\nPCI_SLOT_NAME={bdf}\n")
    tree.add(f"{path}/numa_node", "0\n")
    tree.add(f"{path}/config", tree.files[f"{port}/config"])
    tree.link(f"{config.DEVICES}/{bdf}", f"../../../{path.removeprefix('/sys/')}")
    tree.add("/usr/sbin/rdma_topo", "#!/usr/bin/env python3\n")
    told = (
        "OK\tAll ConnectX DMA functions have correct PCI topology\n"
        f"FAIL\tACS for grace_rp {port.rpartition('/')[2]} has incorrect values 0011101 != xx111x0, "
        "(0x1d != 0x1c)\n"
    )
    tree.commands["rdma_topo"] = lambda argv, seconds: told


def _translated(description: NodeDescription) -> NodeDescription:
    cmdline = description.cmdline.replace(" iommu=pt", " intel_iommu=on")
    return replace(description, iommu="DMA-FQ", cmdline=cmdline)


def _noacs(description: NodeDescription) -> NodeDescription:
    return replace(description, cmdline=f"{description.cmdline} pci=noacs")


def _as_guest(description: NodeDescription) -> NodeDescription:
    """The node as a virtual machine that shows each device on a root bus."""
    devices = ["gpu", "gpu", "gpu", "gpu", "compute mlx5_0", "compute mlx5_1"]
    return replace(
        description,
        product=("QEMU", "Standard PC (Q35 + ICH9, 2009)"),
        root=tuple(
            RootDescription(f"{number:04x}:00", 0, flat=[device]) for number, device in enumerate(devices, 1)
        ),
    )


def _without_nics(*names: str) -> Callable[[NodeDescription], NodeDescription]:
    """The node without these NICs."""

    def keep(holdings: list[object]) -> list[object]:
        return [
            keep(one) if isinstance(one, list) else one
            for one in holdings
            if isinstance(one, list) or str(one).partition(" ")[2] not in names
        ]

    def describe(description: NodeDescription) -> NodeDescription:
        roots = tuple(
            replace(
                root,
                switch=keep(root.switch),
                ports=[str(one) for one in keep(list(root.ports))],
            )
            for root in description.root
        )
        return replace(description, root=tuple(root for root in roots if root.switch or root.ports))

    return describe


def _three_gpus_a_nic(description: NodeDescription) -> NodeDescription:
    first, *others = description.root
    return replace(description, root=(replace(first, switch=["gpu", *first.switch]), *others))


def _small_bar1(description: NodeDescription) -> NodeDescription:
    return replace(description, gpu=replace(description.gpu, bar1_gib=32))


def _numa_node_unknown(tree: Tree) -> None:
    nic = _nic(tree, "mlx5_4")
    if nic is not None:
        tree.add(f"{config.real_path(tree, nic)}/numa_node", "-1\n")


def _count(severity: str, of: Callable[[Tree], str | None], **errors: int) -> Callable[[Tree], None]:
    def spoil(tree: Tree) -> None:
        bdf = of(tree)
        if bdf is not None:
            tree.add(f"{config.real_path(tree, bdf)}/aer_dev_{severity}", config.counts(severity, **errors))

    return spoil


def _without_extended_space(tree: Tree) -> None:
    nic = _nic(tree, "mlx5_9")
    if nic is None:
        return
    for bdf in (nic, _above(tree, nic)):
        path = f"{config.real_path(tree, bdf)}/config"
        content = tree.files[path]
        if isinstance(content, bytes):
            tree.add(path, content[:256])


def _without_tags(tree: Tree) -> None:
    for offset, mask in ((config.DEVICE_CONTROL, 0x100), (config.DEVICE_CONTROL_2, 0x1000)):
        _set_register(lambda tree: _nic(tree, "mlx5_5"), offset, 0, mask)(tree)


def _gone(tree: Tree) -> None:
    nic = _nic(tree, "mlx5_4")
    if nic is not None:
        tree.add(f"{config.real_path(tree, nic)}/config", b"\xff" * 4096)


def _fault(
    name: str,
    spoil: Callable[[Tree], None] | None = None,
    describe: Callable[[NodeDescription], NodeDescription] | None = None,
    on: str = "hgx-h100",
    finds: str = "",
) -> Fault:
    fault = Fault(name, frozenset({finds or name}), on=on)
    if spoil is not None:
        fault = replace(fault, spoil=spoil)
    return fault if describe is None else replace(fault, describe=describe)


FAULTS: tuple[Fault, ...] = (
    _fault("acs-on", _acs_on, finds="acs-redirect-enabled"),
    _fault("acs-direct-nic", _wrong_direct_nic, on="gb200"),
    _fault("acs-direct-translated-without-ats", _direct_translated),
    _fault("acs-option-ignored", describe=_noacs),
    _fault("iommu-translated", describe=_translated),
    _fault("vm-without-p2p", describe=_as_guest, on="pcie-l40s"),
    _fault("vm-without-p2p-ats", _ats_off, on="cloud-vm"),
    _fault("gpu-nic-cross-socket", describe=_without_nics("mlx5_8", "mlx5_9", "mlx5_5"), on="dgx-a100"),
    _fault("gpu-nic-through-cpu", describe=_without_nics("mlx5_8", "mlx5_9"), on="dgx-a100"),
    _fault("gpu-nic-shared", describe=_three_gpus_a_nic, on="pcie-l40s"),
    _fault("numa-node-unknown", _numa_node_unknown),
    _fault("bar1-too-small", describe=_small_bar1),
    _fault("pcie-link-degraded-width", _set_link(lambda tree: _nic(tree, "mlx5_2"), current_link_width="8")),
    _fault(
        "pcie-link-degraded-speed",
        _set_link(lambda tree: _nic(tree, "mlx5_3"), current_link_speed="16.0 GT/s PCIe"),
    ),
    _fault(
        "pcie-link-degraded-gpu-speed",
        _set_link(lambda tree: _gpu(tree, 4), current_link_speed="2.5 GT/s PCIe"),
    ),
    _fault(
        "pcie-link-limited-by-slot",
        _set_link(
            lambda tree: _gpu(tree, 6),
            both=False,
            current_link_speed="16.0 GT/s PCIe",
            max_link_speed="16.0 GT/s PCIe",
        ),
    ),
    _fault(
        "pcie-link-below-port-rate",
        _set_link(lambda tree: _nic(tree, "mlx5_8"), both=False, current_link_width="8", max_link_width="8"),
    ),
    _fault(
        "pcie-devctl-relaxed-ordering",
        _set_register(lambda tree: _nic(tree, "mlx5_1"), config.DEVICE_CONTROL, 0, 0x10),
    ),
    _fault(
        "pcie-devctl-read-request",
        _set_register(lambda tree: _nic(tree, "mlx5_0"), config.DEVICE_CONTROL, 0x2000, 0x7000),
    ),
    _fault(
        "pcie-devctl-read-request-differs",
        _set_register(lambda tree: _nic(tree, "mlx5_3"), config.DEVICE_CONTROL, 0x3000, 0x7000),
    ),
    _fault(
        "pcie-devctl-ten-bit-tags-differ",
        _set_register(lambda tree: _nic(tree, "mlx5_6"), config.DEVICE_CONTROL_2, 0, 0x1000),
    ),
    _fault(
        "pcie-devctl-payload-differs",
        _set_register(lambda tree: _gpu(tree, 1), config.DEVICE_CONTROL, 0, 0xE0),
    ),
    _fault(
        "pcie-devctl-extended-tags",
        _without_tags,
    ),
    _fault("pcie-aspm-on", _set_register(lambda tree: _nic(tree, "mlx5_7"), config.LINK_CONTROL, 2, 3)),
    _fault("pcie-aer-uncorrectable", _count("fatal", lambda tree: _nic(tree, "mlx5_0"), MalfTLP=2)),
    _fault("pcie-aer-correctable", _count("correctable", lambda tree: _gpu(tree, 0), BadTLP=1294)),
    _fault(
        "pcie-error-unreported",
        _set_register(lambda tree: _gpu(tree, 7), config.DEVICE_STATUS, 4, 4),
    ),
    _fault("pcie-config-unreachable", _without_extended_space),
    _fault("pcie-function-gone", _gone),
)
