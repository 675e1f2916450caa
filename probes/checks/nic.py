"""Checks of NICs as devices: driver, RDMA device, firmware, bond."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.port_use import NO_PORTS, gpus_without_nic
from probes.checks.wording import at_most, several
from probes.examination import Examination
from probes.pci import PciFunction, PciKind
from probes.plan import Plan, Step, instruction
from probes.rdma import RdmaDevice
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("nic")
_MELLANOX = 0x15B3
_NO_NIC = Evidence("/sys/bus/pci/devices", "no NVIDIA (Mellanox) NIC here")
_DRIVER = "Linux, Documentation/networking/device_drivers/ethernet/mellanox/mlx5"


def _functions(examination: Examination) -> Maybe[list[PciFunction]]:
    """ConnectX and BlueField NICs; without virtual functions, which may be kept for guests."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return pci
    return [
        one
        for one in pci.functions.values()
        if one.kind is PciKind.NIC and one.vendor_id == _MELLANOX and one.physical_function is None
    ]


def _devices(examination: Examination) -> Maybe[tuple[RdmaDevice, ...]]:
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown):
        return () if rdma.reason is Reason.NOT_THERE else rdma
    return tuple(one for one in rdma.devices if not isinstance(one.bdf, Unknown))


def _lost(examination: Examination, bdfs: list[str]) -> Severity:
    return Severity.CRITICAL if gpus_without_nic(examination, bdfs) else Severity.WARNING


def _driver_evidence(function: PciFunction) -> Evidence:
    return Evidence(f"/sys/bus/pci/devices/{function.bdf}/driver", known(function.driver, "none"))


@AREA.check("nic-without-driver", Severity.WARNING, "a NIC on the bus has no driver", _DRIVER)
def without_driver(examination: Examination) -> Outcome:
    """NICs that no kernel driver is bound to."""
    functions = _functions(examination)
    if isinstance(functions, Unknown):
        return unsure(f"needs the PCI functions: {functions}")
    bare = [
        one for one in functions if isinstance(one.driver, Unknown) and one.driver.reason is Reason.NOT_THERE
    ]
    if bare:
        bdfs = [one.bdf for one in bare]
        return found(
            f"{several(bdfs)}: mlx5_core is not loaded, was unbound, or gave up at start",
            *at_most(_driver_evidence(one) for one in bare),
            fix=Plan(
                "Have the driver take the NIC",
                (
                    Step("loads the driver where it is not loaded", ("modprobe", "mlx5_core")),
                    instruction(
                        "if it is loaded: look in the kernel log why it left the device, then reboot"
                    ),
                ),
            ),
            severity=_lost(examination, bdfs),
            devices=tuple(bdfs),
        )
    for one in functions:
        if isinstance(one.driver, Unknown):
            return unsure(f"needs the driver of {one.bdf}: {one.driver}")
    return passed(*at_most(_driver_evidence(one) for one in functions) or (_NO_NIC,))


@AREA.check(
    "nic-without-driver-passed-through",
    Severity.NOTE,
    "a NIC is kept for a virtual machine",
    "Linux, Documentation/driver-api/vfio.rst",
)
def passed_through(examination: Examination) -> Outcome:
    """NICs bound to vfio-pci or another driver that is no NIC's."""
    functions = _functions(examination)
    if isinstance(functions, Unknown):
        return unsure(f"needs the PCI functions: {functions}")
    away = [one for one in functions if known(one.driver, "") in ("vfio-pci", "pci-stub", "uio_pci_generic")]
    if away:
        return found(
            f"{several(one.bdf for one in away)}: this node's own programs cannot use it",
            *at_most(_driver_evidence(one) for one in away),
            devices=tuple(one.bdf for one in away),
        )
    return passed(*at_most(_driver_evidence(one) for one in functions) or (_NO_NIC,))


@AREA.check(
    "nic-without-rdma-device",
    Severity.WARNING,
    "a NIC works for Ethernet or IPoIB, but not for RDMA",
    "NVIDIA MLNX_OFED manual, and devlink-dev(8): parameter enable_rdma",
)
def without_rdma_device(examination: Examination) -> Outcome:
    """NICs that mlx5_core drives and that have no RDMA device."""
    functions = _functions(examination)
    devices = _devices(examination)
    if isinstance(functions, Unknown):
        return unsure(f"needs the PCI functions: {functions}")
    if isinstance(devices, Unknown):
        return unsure(f"needs the RDMA devices: {devices}")
    taken = {one.bdf for one in devices}
    # The second port of a bond has no RDMA device of its own: the bond's is on the first.
    bonded = {known(one.bdf, "").rpartition(".")[0] for one in devices if _is_bond(one)}
    bare = [
        one
        for one in functions
        if known(one.driver, "") == "mlx5_core"
        and one.bdf not in taken
        and one.bdf.rpartition(".")[0] not in bonded
    ]
    if bare:
        bdfs = [one.bdf for one in bare]
        return found(
            f"{several(bdfs)}: mlx5_ib is not loaded, RDMA is off for this device, or it belongs to "
            "another network namespace",
            *at_most(Evidence(f"/sys/bus/pci/devices/{bdf}/infiniband", "not there") for bdf in bdfs),
            fix=Plan(
                "Bring up its RDMA device",
                (
                    Step("loads mlx5's RDMA driver", ("modprobe", "mlx5_ib")),
                    Step(
                        "shows whether RDMA is switched off",
                        ("devlink", "dev", "param", "show", f"pci/{bdfs[0]}", "name", "enable_rdma"),
                    ),
                    Step("shows whether it is in another namespace", ("rdma", "system", "show"), False),
                ),
            ),
            severity=_lost(examination, bdfs),
            devices=tuple(bdfs),
        )
    shown = (Evidence("/sys/class/infiniband", f"{one.name} on {known(one.bdf, '?')}") for one in devices)
    return passed(*at_most(shown) or (_NO_NIC,))


@AREA.check(
    "nic-firmware-mismatch",
    Severity.WARNING,
    "equal NICs run different firmware",
    "NVIDIA MFT manual, mlxfwmanager, https://docs.nvidia.com/networking/display/mftv4320/mlxfwmanager",
)
def firmware_differs(examination: Examination) -> Outcome:
    """Firmware of NICs of one board (PSID)."""
    devices = _devices(examination)
    if isinstance(devices, Unknown):
        return unsure(f"needs the RDMA devices: {devices}")
    boards: dict[str, list[RdmaDevice]] = {}
    for one in devices:
        if not isinstance(one.board_id, Unknown) and not isinstance(one.firmware, Unknown):
            boards.setdefault(one.board_id, []).append(one)
    mixed = {board: equal for board, equal in boards.items() if len({one.firmware for one in equal}) > 1}
    if mixed:
        odd: list[RdmaDevice] = []
        for equal in mixed.values():
            versions = [known(one.firmware, "") for one in equal]
            usual = max(sorted(set(versions)), key=versions.count)
            odd += [one for one in equal if one.firmware != usual]
        board = next(iter(mixed))
        return found(
            f"{several(one.name for one in odd)}: other firmware than most of board {board}. One rail "
            "then behaves unlike the others",
            *at_most(_firmware(one) for equal in mixed.values() for one in equal),
            fix=Plan(
                "Bring the NICs to one release",
                (
                    Step("shows what is installed and what there is", ("mlxfwmanager", "--query")),
                    instruction(
                        "mlxfwmanager -u on each NIC with the image of its PSID, then mlxfwreset or power"
                    ),
                ),
                reversible=False,
                disturbs="whoever uses these NICs loses them during the reset",
            ),
            devices=tuple(one.name for one in odd),
        )
    for one in devices:
        if isinstance(one.firmware, Unknown) and one.firmware.reason is not Reason.NOT_THERE:
            return unsure(f"needs the firmware version of {one.name}: {one.firmware}")
    return passed(*at_most(_firmware(one) for one in devices) or (NO_PORTS,))


def _firmware(device: RdmaDevice) -> Evidence:
    return Evidence(f"{device.sysfs_path}/fw_ver", known(device.firmware, "unknown"))


def _is_bond(device: RdmaDevice) -> bool:
    netdevs = [known(port.netdev, "") for port in device.ports]
    return "_bond_" in device.name or any(name.startswith("bond") for name in netdevs)


@AREA.check(
    "single-rail-or-half-rate-bond",
    Severity.NOTE,
    "an RDMA device is a bond: one connection uses one of its ports",
    "NVIDIA NCCL environment variables, NCCL_IB_QPS_PER_CONNECTION",
)
def bond(examination: Examination) -> Outcome:
    """RDMA devices over a bond of two ports."""
    devices = _devices(examination)
    if isinstance(devices, Unknown):
        return unsure(f"needs the RDMA devices: {devices}")
    bonds = [one for one in devices if _is_bond(one)]
    if bonds:
        return found(
            f"{several(one.name for one in bonds)}: with one queue pair for a connection NCCL gets one "
            "port's rate",
            *at_most(Evidence(f"/sys/class/infiniband/{one.name}", "a bond") for one in bonds),
            fix=Plan(
                "Let NCCL use both ports",
                (instruction("set NCCL_IB_QPS_PER_CONNECTION=2 (or 4) in the job, and measure", False),),
                disturbs="the job: it has to be restarted",
            ),
            devices=tuple(one.name for one in bonds),
        )
    return passed(*at_most(Evidence("/sys/class/infiniband", one.name) for one in devices) or (NO_PORTS,))
