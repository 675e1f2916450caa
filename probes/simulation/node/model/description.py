"""The description of a simulated node in its TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from probes.base.data_files import read_toml
from probes.base.frozen import frozen
from probes.facts.gpu.generations import TURING, is_before, without_gdr
from probes.facts.gpudirect_probe import FIRST_DMABUF_DRIVER
from probes.facts.pci.nic_families import CONNECTX, FAMILIES
from probes.simulation.node.model.names import SIMULATED_NAMES

_HIGHEST = 1.35  # of a wave, as a factor of its mean (model/load.py), with a margin


@frozen
class DriverDescription:
    """The NVIDIA driver."""

    version: str
    flavor: Literal["open", "proprietary"]
    cuda: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(int(part) for part in self.version.split(".") if part.isdecimal())


@frozen
class GpuDescription:
    """All GPUs of the node; `link` is PCIe generation and width, `watts` idle and busy."""

    name: str
    id: str
    memory_gib: int  # 0: it uses the CPU's, and NVML reports neither memory nor BAR1
    bar1_gib: int
    capability: tuple[int, int]
    link: tuple[int, int]
    nvlinks: int
    watts: tuple[int, int]
    c2c: int = 0


@frozen
class QosDescription:
    """How RoCE netdevs choose the priority of packets."""

    tool: str  # that shows it: "dcb" or "mlnx_qos"
    pfc: tuple[int, ...]  # priorities with flow control
    trusts_dscp: bool = True
    priorities: dict[int, int] = field(default_factory=dict)  # DSCP -> priority, where not the usual one


_DRIVERS = {family.vendor: family.pci_drivers[0] for family in reversed(FAMILIES)}


VIRTUAL_FUNCTION = "15b3:101e"


@frozen
class NicDescription:
    """One kind of NIC; `gbps` is the traffic of a training job per port."""

    id: str
    rate: str  # "400 Gb/sec (4X NDR)"; "": unknown, for it is not public
    layer: str
    link: tuple[int, int]
    gbps: float
    hca: str = ""  # EFA and Slingshot have none, nor a board
    firmware: str = ""
    board: str = ""
    subsystem: str = ""  # "": the usual one of the vendor
    vpd: str = ""  # its text fields; "": no VPD is described
    partition_keys: tuple[str, ...] = ("0xffff",)  # of InfiniBand, from index 0 on
    manages_nvswitches: bool = False  # no NIC of jobs, see probes/facts/pci/functions.py
    # In these, {number} is the NIC's among those of its kind, from 0; {place} is that of a name by slot.
    netdev: str = ""  # "rdma{number}", "en{place}np{function}"; "": "ens" and a number
    address: str = ""  # IPv4 with prefix, "192.168.{number}.157/16"; "": no route leads over it
    mtu: int = 0  # of the netdev; 0: the usual one
    qos: QosDescription | None = None
    copper: bool = False  # passive cables, which have no sensor
    leaf: str = ""  # name of the switch as LLDP tells it; {member} is "a" or "b" of bonded ports
    bonded_ports: int = 1  # 2: the RDMA device spans both functions of its card, bonded as `netdev`

    @property
    def line_gbps(self) -> float:
        """Return the line rate; one that is not public is that of the job's traffic at its highest."""
        return float(self.rate.partition(" ")[0]) if self.rate else self.gbps * _HIGHEST

    @property
    def driver(self) -> str:
        """Return the PCI driver: by the vendor, and mlx4_core for ConnectX-3."""
        if self.id in ("15b3:1003", "15b3:1007"):
            return "mlx4_core"
        return _DRIVERS.get(int(self.id.partition(":")[0], 16), CONNECTX.pci_drivers[0])


@frozen
class SwitchDescription:
    """All PCIe switches of the node."""

    id: str = "1000:c030"
    link: tuple[int, int] = (5, 16)
    uplink: tuple[int, int] | None = None  # to the CPU, if that link differs


@frozen
class NumaDescription:
    """One NUMA node."""

    cpus: str
    memory_gib: int
    distances: tuple[int, ...]


@frozen
class RootDescription:
    """One host bridge with a switch below a root port, devices on root ports or devices on the bus itself.

    A device is "gpu", "nvswitch", a kind of NIC with its name ("compute mlx5_0", or "compute mlx5_0+mlx5_1"
    for a card with two functions), or the DMA function of a NIC ("dma mlx5_0").
    """

    bus: str  # "0000:15"
    numa: int = -1
    link: tuple[int, int] | None = None  # between the root port and its switch; None: as of the switches
    first: str = ""  # bus of the first device below the switch, "4f"; "": the next one
    switch: list[Any] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    flat: list[str] = field(default_factory=list)


@frozen
class ModulesDescription:
    """Kernel modules: loaded ones, and others on disk for this kernel."""

    live: tuple[str, ...]
    on_disk: tuple[str, ...] = ()
    ofed: bool = False  # with OFED's ib_core, which exports the peer-memory symbols


@frozen
class GpuDirectDescription:
    """Which paths work, and how many memory regions the job has registered through nvidia-peermem."""

    dmabuf: bool
    regions: int = 0
    memory_peers: bool = False
    refusing: tuple[str, ...] = ()  # RDMA devices whose driver does not support dma-buf regions


@frozen
class NvmlDescription:
    """What NVML reports beyond the GPUs' properties; GPUs by number."""

    refusal: str = ""  # why NVML does not answer at all
    lost: frozenset[int] = frozenset()  # fallen off the bus
    unlisted: frozenset[int] = frozenset()
    with_fewer_nvlinks: frozenset[int] = frozenset()
    outside_fabric: frozenset[int] = frozenset()  # not registered with the NVLink fabric
    in_other_clique: frozenset[int] = frozenset()
    with_reduced_nvlink: frozenset[int] = frozenset()  # the fabric's health mask says so
    persistence: bool = True
    mig: bool = False
    is_vgpu: bool = False
    confidential_computing: bool = False


@frozen
class ClusterDescription:
    """The node as part of a Kubernetes cluster with NVIDIA's operators."""

    tool: Literal["kubectl", "oc"] = "kubectl"
    driver: str = ""  # version that the GPU Operator installs; "": the driver is on the host
    rdma: bool = False  # driver.rdma.enabled: with a container that loads nvidia_peermem
    use_host_mofed: bool = False
    ofed: str = ""  # version that the Network Operator installs; "": none
    waiting: tuple[str, ...] = ()  # containers that are not ready
    log: tuple[str, ...] = ()  # of the first of them
    reason: str = ""  # of the first of them: "CrashLoopBackOff"


@frozen
class SystemDescription:
    """The operating system: how it boots, where the drivers are from, Slurm, the cloud, Kubernetes."""

    id: str  # os-release
    version: str
    like: str = ""
    boot: Literal["grub", "grub-bls", "systemd-boot"] = "grub"
    efi: bool = True
    older_kernel: str = ""  # a second one on disk
    packages: dict[str, tuple[str, str]] = field(default_factory=dict)  # file -> name and version
    ofed: str = ""  # what ofed_info prints; "": OFED is not installed
    slurm: str = ""  # path of slurm.conf; "": no Slurm
    asset_tag: str = ""  # DMI, of a cloud
    nccl_conf: str = ""  # what /etc/nccl.conf contains; "": there is none
    plugin: str = ""  # file of the network plugin that jobs load; "": none
    cluster: ClusterDescription | None = None


@frozen
class TopologyFileDescription:
    """A topology file of the cloud's image, with one invented switch for each group of devices."""

    path: str
    link: tuple[str, str]  # link_speed and link_width of every element
    numa: tuple[tuple[str, ...], ...]  # for each NUMA node the switches, each the bus IDs below it


@frozen
class NodeDescription:
    """A whole node."""

    name: str
    title: str
    hostname: str
    product: tuple[str, str]
    distribution: str
    kernel: str
    architecture: str
    cmdline: str
    driver: DriverDescription
    gpu: GpuDescription
    nic: dict[str, NicDescription]
    numa: tuple[NumaDescription, ...]
    root: tuple[RootDescription, ...]
    modules: ModulesDescription
    gpudirect: GpuDirectDescription
    system: SystemDescription
    root_port: str = "8086:352a"
    rdma_core: int = 39
    nccl: str = "2.27.7"  # of the jobs, and installed
    gpu_memory_mode: str = ""  # NVreg_CoherentGPUMemoryMode: "driver" or "numa"; "": not set
    iommu: str = ""
    iommu_kind: str = "dmar"
    uncore: int = 0
    switch: SwitchDescription = SwitchDescription()
    nvml: NvmlDescription = NvmlDescription()
    topology_file: TopologyFileDescription | None = None
    tests: tuple[str, ...] = ()  # installed besides perftest: "gdrcopy", "nvbandwidth", "nccl-tests"
    sysctl: dict[str, int] = field(default_factory=dict)  # "net.ipv4.conf.all.arp_ignore" -> 1
    job: dict[str, str] = field(default_factory=dict)  # variables that the site's job script sets
    job_nodes: int = 4  # of each training job
    job_node: int = 0  # the number of this node in it

    @property
    def offers_gdr(self) -> bool:
        """Return whether the GPUs support GPUDirect RDMA (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)."""
        return not (without_gdr(self.gpu.name) or self.nvml.is_vgpu or self.nvml.confidential_computing)

    @property
    def exports_dmabuf(self) -> bool:
        """Return CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: open modules, new enough, and a GPU they serve."""
        is_new = self.driver.numbers >= FIRST_DMABUF_DRIVER and not is_before(self.gpu.capability, TURING)
        return self.offers_gdr and self.driver.flavor == "open" and is_new


def simulated_names() -> tuple[str, ...]:
    """Return the names that `--demo` accepts, the default first."""
    return SIMULATED_NAMES


def title(name: str) -> str:
    """Return a one-line description of the node."""
    return describe(name).title


@cache
def describe(name: str) -> NodeDescription:
    """Read a description; KeyError for an unknown name, TypeError for a wrong or missing key."""
    if name not in SIMULATED_NAMES:
        raise KeyError(name)
    description = _decode(
        NodeDescription, {"name": name, **read_toml("probes.simulation", f"nodes/{name}.toml")}
    )
    assert isinstance(description, NodeDescription)
    return description


_hints = cache(get_type_hints)


def _decode(kind: Any, value: Any) -> Any:
    """Convert a value of a parsed TOML file to a type; TypeError for a wrong or missing key."""
    origin, kinds = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # with None, which a file cannot say
        return _decode(kinds[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        if isinstance(value, kind):
            return value
        hints = _hints(kind)
        for name in value.keys() - hints.keys():
            raise TypeError(f"{kind.__name__} has no {name}")
        return kind(**{name: _decode(hints[name], item) for name, item in value.items()})
    if origin in (tuple, frozenset):
        return origin(_decode(kinds[0], item) for item in value)  # all items are of one type
    if origin is dict:
        return {kinds[0](key): _decode(kinds[1], item) for key, item in value.items()}
    return value


def with_fields(described: Any, fields: Mapping[str, Any]) -> Any:
    """Return a description, or a part of one, with other values of these fields; a set gains members."""
    kind: Any = type(described)
    changed: dict[str, Any] = {}
    for name, value in fields.items():
        before = getattr(described, name)
        if is_dataclass(before):
            changed[name] = with_fields(before, value)
        else:
            now = _decode(_hints(kind)[name], value)
            changed[name] = before | now if isinstance(before, frozenset) else now
    return replace(described, **changed)
