"""PCI configuration space and error counters of a simulated node, as root sees them.

Offsets and bits: include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

from probes.facts.pci.functions import DEVICES
from probes.facts.system.platform import hypervisor_of
from probes.simulation.node.model.tree import Tree

EXPRESS, ACS, ATS, REBAR = 0x60, 0x148, 0x150, 0x158
DEVICE_CONTROL, DEVICE_STATUS = EXPRESS + 0x08, EXPRESS + 0x0A
LINK_CONTROL, DEVICE_CONTROL_2 = EXPRESS + 0x10, EXPRESS + 0x28
ACS_CONTROL, ATS_CONTROL = ACS + 6, ATS + 6

_CONFIG_BYTES = 4096
_DMA_CONTROLLER = 0x0801
_ENDPOINT, _ROOT_PORT, _UPSTREAM, _DOWNSTREAM = 0, 4, 5, 6
# MaxPayload 256, relaxed ordering, extended tags, no snoop; MaxReadReq 4096 and 512.
_READS_4096, _READS_512 = 0x5930, 0x2930
_TEN_BIT_TAGS = 0x1000
_ACS_CAPABLE, _KERNEL_ACS, _SOURCE_VALIDATION = 0x5F, 0x1D, 0x01
_COMPLETION_REDIRECT = 0x08
_VERA_ROOT_PORTS = ("10DE:2F95", "10DE:2F96")  # they do not have it: rdma-core kernel-boot/rdma_topo
_ERRORS = {
    "correctable": ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr"),
    "nonfatal": ("DLP", "FCP", "TLP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP"),
    "fatal": ("DLP", "FCP", "TLP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP"),
}
_TOTALS = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}


def add_config_space(tree: Tree) -> None:
    """Add `config` and `aer_dev_*` for GPUs, NICs, NVSwitches and bridges."""
    bars = {gpu.bdf: tree.description.gpu.bar1_gib for gpu in tree.gpus}
    for link, target in list(tree.links.items()):
        if not link.startswith(f"{DEVICES}/"):
            continue
        bdf = link.rpartition("/")[2]
        path = f"/sys/{target.removeprefix('../../../')}"
        event = str(tree.files[f"{path}/uevent"])
        fields = dict(line.split("=", 1) for line in event.splitlines())
        code = int(fields["PCI_CLASS"], 16)
        if code >> 16 not in (0x02, 0x03, 0x06) and code >> 8 != _DMA_CONTROLLER:
            continue
        tree.add(f"{path}/config", _config(tree, path, fields, code, bars.get(bdf, 0)))
        for severity in _ERRORS:
            tree.add(f"{path}/aer_dev_{severity}", counts(severity))
    for direct in tree.dma_functions.values():
        _allow_direct_path(tree, direct)


def _allow_direct_path(tree: Tree, dma: str) -> None:
    """Set ACS as rdma_topo requires for a ConnectX DMA function: see probes/checks/pcie/acs.py."""
    to_dma = dma.split("/")
    for gpu in tree.gpus:
        to_gpu = real_path(tree, gpu.bdf).split("/")
        if to_gpu[:6] != to_dma[:6]:
            continue
        pairs = enumerate(zip(to_dma, to_gpu, strict=False))
        shared = next(place for place, (here, there) in pairs if here != there)
        for bdf, control in ((to_dma[shared], 0x19), (to_gpu[shared], 0x15), (to_dma[4], 0x1C)):
            set_bits(tree, bdf, ACS_CONTROL, control, _KERNEL_ACS)


def counts(severity: str, **above_zero: int) -> str:
    """Return the content of an aer_dev_ file."""
    lines = [f"{name} {above_zero.get(name, 0)}\n" for name in _ERRORS[severity]]
    return "".join((*lines, f"{_TOTALS[severity]} {sum(above_zero.values())}\n"))


def real_path(tree: Tree, bdf: str) -> str:
    """Return the directory of a PCI function below /sys/devices."""
    return f"/sys/{tree.links[f'{DEVICES}/{bdf}'].removeprefix('../../../')}"


def set_bits(tree: Tree, bdf: str, offset: int, value: int, mask: int) -> None:
    """Set the bits of `mask` in a 16-bit register."""
    path = f"{real_path(tree, bdf)}/config"
    content = tree.files[path]
    if not isinstance(content, bytes) or len(content) <= offset:
        return  # another fault has removed it
    old = int.from_bytes(content[offset : offset + 2], "little")
    new = (old & ~mask | value & mask).to_bytes(2, "little")
    tree.files[path] = content[:offset] + new + content[offset + 2 :]


def _config(tree: Tree, path: str, fields: dict[str, str], code: int, bar_gib: int) -> bytes:
    content = bytearray(_CONFIG_BYTES)

    def put(offset: int, value: int, size: int = 2) -> None:
        content[offset : offset + size] = value.to_bytes(size, "little")

    bridge = code >> 8 == 0x0604
    vendor, _, device = fields["PCI_ID"].partition(":")
    put(0x00, int(vendor, 16))
    put(0x02, int(device, 16))
    put(0x04, 0x0406)
    put(0x06, 0x0010)  # has a capability list
    put(0x08, code << 8, 4)
    content[0x0E] = 1 if bridge else 0
    content[0x34] = EXPRESS
    put(EXPRESS, 0x0010)
    kind = _port_type(path) if bridge else _ENDPOINT
    put(EXPRESS + 0x02, kind << 4 | 2)
    put(EXPRESS + 0x04, 0x2, 4)  # MaxPayload up to 512
    put(DEVICE_CONTROL, _READS_4096 if code >> 16 in (0x02, 0x08) else _READS_512)
    if not bridge:
        put(DEVICE_CONTROL_2, _TEN_BIT_TAGS)
    put(0x100, ACS << 20 | 0x1_0001, 4)
    redirectable = kind in (_ROOT_PORT, _DOWNSTREAM)
    put(ACS, ATS << 20 | (0x1_000D if redirectable else 0x1_0003), 4)
    if redirectable:
        lacking = _COMPLETION_REDIRECT if fields["PCI_ID"] in _VERA_ROOT_PORTS else 0
        put(ACS + 4, _ACS_CAPABLE & ~lacking)
        put(ACS_CONTROL, _acs_of(tree) & ~lacking)
    put(ATS, REBAR << 20 | (0x1_000F if code >> 16 == 0x02 else 0x1_0019), 4)
    is_guest = hypervisor_of(" ".join(tree.description.product)) is not None
    if code >> 16 == 0x02 and (is_guest or f"{path}/physfn" in tree.links):
        put(ATS_CONTROL, 0x8000)  # as clouds configure the functions that they pass to guests
    if bar_gib:
        exponent = (bar_gib << 10).bit_length() - 1
        put(REBAR, 0x1_0015, 4)
        put(REBAR + 4, 1 << (exponent + 4), 4)
        put(REBAR + 8, exponent << 8 | 1 << 5 | 2, 4)
    return bytes(content)


def _port_type(path: str) -> int:
    """Return the port type; below a root port, switches have an upstream and downstream ports."""
    depth = path.count("/") - len(("sys", "devices", "pci0000:00", "0000:00:00.0"))
    if depth == 0:
        return _ROOT_PORT
    return _UPSTREAM if depth % 2 else _DOWNSTREAM


def _acs_of(tree: Tree) -> int:
    """Return the kernel's ACS on Grace, where it is right; elsewhere bits that redirect nothing."""
    if tree.description.gpu.c2c:
        return _KERNEL_ACS
    return _SOURCE_VALIDATION if tree.description.iommu else 0
