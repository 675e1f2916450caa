"""Data Direct: the function by which a ConnectX-8 reaches GPU memory on Grace without the CPU."""

from __future__ import annotations

from probes.base.plan import instruction, make_plan
from probes.base.unknown import Reason, Unknown, is_there, known, map_known
from probes.checks.nccl.library import versions_of
from probes.facts.pci.functions import DEVICES, PciFunction, PciKind, is_for_guests
from probes.facts.pci.nic_families import CONNECTX
from probes.facts.rdma.data_direct import DATA_DIRECT_FUNCTION
from probes.nccl.settings import parse_number
from probes.plans.common import reboot_plan
from probes.queries.evidence_list import PCI_FUNCTIONS, first_distinct, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed, unknown
from probes.queries.jobs import conclude, job_plan, jobs_of, maps, values_of
from probes.queries.pcie_paths import functions_of, is_grace, is_guest
from probes.snapshot.examination import Examination

AREA = Area("path")
_GUIDE = (
    "NVIDIA Grace Blackwell CX8 GPUDirect RDMA guide, "
    "https://docs.nvidia.com/multi-node-nvlink-systems/grace-blackwell-cx8-gpudirect-rdma-guide/; "
)
_VARIABLE = "NCCL_IB_DATA_DIRECT"
_FIRST_NCCL, _FIRST_LIBMLX5 = (2, 27, 3), (1, 25)  # rdma-core 54: libmlx5.so.1.25.54.0
_CONNECTX_8 = 0x1023
_THROUGH_CPU = (
    "GPU traffic of these NICs goes through the CPU, at the rate of the NIC's PCIe link to the CPU (504 of "
    "800 Gb/s on a GB300)."
)


@AREA.check(
    "data-direct-unavailable",
    Severity.WARNING,
    "A ConnectX NIC cannot use its Data Direct function",
    f"{_GUIDE}Linux drivers/infiniband/hw/mlx5/data_direct.c; mlx5dv_get_data_direct_sysfs_path(3)",
    ok="NICs use their Data Direct functions, or have none",
    impact=_THROUGH_CPU,
    data_path=True,
)
def data_direct_unavailable(examination: Examination) -> Outcome:
    """Find DMA functions without driver or NIC, a libmlx5 that does not know them, and hidden functions."""
    functions = functions_of(examination)
    facts = need(examination.node.data_direct, PCI_FUNCTIONS)
    if not facts.functions:
        return _none_here(examination)
    here = [functions[bdf] for bdf in facts.functions if not is_for_guests(functions[bdf].driver)]
    unbound = [function for function in here if is_there(function.driver) is False]
    if unbound:
        return _without_driver(examination, unbound)
    answers = list(facts.of_devices.items())
    refused = [(name, answer) for name, answer in answers if isinstance(answer, Unknown)]
    absent = [(name, answer) for name, answer in refused if answer.reason is Reason.NOT_THERE]
    if absent:
        return _not_asked(examination, absent[0][1], [name for name, _ in absent])
    if refused:
        return unknown(f"needs the Data Direct function of {refused[0][0]} ({refused[0][1]})")
    paired = {answer for _, answer in answers if isinstance(answer, str)}
    left = [function.bdf for function in here if function.bdf not in paired]
    if left and answers:
        return found(
            f"mlx5_ib has found no NIC for {join_limited(left)}. It pairs the two by an ID in their VPD.",
            *first_distinct(
                Evidence(f"{DATA_DIRECT_FUNCTION} on {name}", answer or "none") for name, answer in answers
            ),
            fix=reboot_plan(
                "Have the firmware pair NIC and function",
                "Update the NICs' firmware and power-cycle the node",
            ),
            devices=tuple(left),
        )
    shown = (
        Evidence(f"{DATA_DIRECT_FUNCTION} on {name}", answer)
        for name, answer in answers
        if isinstance(answer, str)
    )
    return passed(*first_distinct(shown) or (Evidence(DEVICES, "the DMA functions belong to guests"),))


def _none_here(examination: Examination) -> Outcome:
    """Judge a bus without DMA functions: a ConnectX-8 on Grace, with its switch above a GPU, has one."""
    functions = functions_of(examination)
    mellanox = [function for function in functions.values() if function.vendor_id == CONNECTX.vendor]
    nics = [nic for nic in mellanox if nic.kind is PciKind.NIC and nic.device_id == _CONNECTX_8]
    gpus = [function for function in functions.values() if function.kind is PciKind.GPU]
    switches = {function.bdf for function in mellanox if function.kind is PciKind.BRIDGE}
    if not nics or not is_grace(examination) or not any(switches.intersection(gpu.chain) for gpu in gpus):
        return passed(Evidence(DEVICES, "no ConnectX DMA function (15b3:2100) here"))
    guest = is_guest(examination)
    return found(
        "A GPU is below a ConnectX-8's switch, but no DMA function (15b3:2100) is on the PCI bus.",
        Evidence(DEVICES, f"ConnectX-8: {join_limited(function.bdf for function in nics)}; no 15b3:2100"),
        fix=reboot_plan(
            "Make the functions visible again",
            *(
                ["On the host of the virtual machine, pass the DMA functions through, too"]
                * (guest is not False)
            ),
            *(["Update the NICs' firmware and power-cycle the node"] * (guest is not True)),
        ),
        devices=tuple(function.bdf for function in nics),
    )


def _without_driver(examination: Examination, unbound: list[PciFunction]) -> Outcome:
    release = examination.node.kernel_release
    return found(
        "No driver is bound to the DMA function. mlx5_ib supports it in Linux 6.12 or newer and in "
        "DOCA-OFED.",
        *first_distinct(Evidence(f"{DEVICES}/{function.bdf}/driver", "no driver") for function in unbound),
        Evidence("uname -r", known(release, "unknown")),
        fix=reboot_plan(
            "Install a driver with Data Direct",
            "Boot Linux 6.12 or newer (Ubuntu: linux-nvidia-64k-6.14), or install DOCA-OFED",
            "After the reboot, look for the driver's messages in the kernel log (VPD, VU keyword)",
        ),
        devices=tuple(function.bdf for function in unbound),
    )


def _not_asked(examination: Examination, why: Unknown, nics: list[str]) -> Outcome:
    """Return what keeps libmlx5 from finding the functions: its own age, or the driver's."""
    devices = known(map_known(examination.node.rdma, lambda rdma: rdma.devices), ())
    bdfs = [device.bdf for device in devices if device.name in nics]
    return found(
        f"{join_limited(nics)}: {why.detail}.",
        Evidence(DATA_DIRECT_FUNCTION, why.detail),
        fix=make_plan(
            "Use rdma-core 54 or newer",
            "Install rdma-core 54 or newer, or DOCA-OFED with its user-space packages",
            instruction("Do the same in the jobs' images: they bring their own libmlx5", False),
            disturbs="every RDMA program, which must be restarted",
        ),
        devices=(*nics, *(bdf for bdf in bdfs if not isinstance(bdf, Unknown))),
    )


@AREA.check(
    "data-direct-off-in-job",
    Severity.WARNING,
    "A job does not use the NICs' Data Direct functions",
    f"{_GUIDE}NVIDIA/nccl src/transport/net_ib/init.cc, NCCL_IB_DATA_DIRECT; NVIDIA/nccl issue 1866",
    ok="Jobs use the NICs' Data Direct functions, or NICs have none",
    impact=_THROUGH_CPU,
    data_path=True,
)
def data_direct_off_in_job(examination: Examination) -> Outcome:
    """Find NCCL_IB_DATA_DIRECT=0, NCCL before 2.27.3, and libmlx5 before 1.25 in jobs with NCCL."""
    facts = need(examination.node.data_direct, PCI_FUNCTIONS)
    if not facts.functions:
        return passed(Evidence(DEVICES, "no ConnectX DMA function (15b3:2100) here"))
    jobs = jobs_of(examination)
    remark = "disables Data Direct"
    off = values_of(examination, _VARIABLE, lambda _, value: remark if parse_number(value) == 0 else None)
    old = [
        Evidence(f"/proc/{process.pid}/maps", library.path)
        for process in jobs.processes
        if maps(process, "libnccl")
        for name, first in (("libnccl", _FIRST_NCCL), ("libmlx5", _FIRST_LIBMLX5))
        for library, version in versions_of(process, name)
        if version < first
    ]
    return conclude(
        jobs,
        [*off, *old],
        "NCCL 2.27.3 and later use Data Direct with libmlx5 from rdma-core 54 or newer, unless "
        "NCCL_IB_DATA_DIRECT is 0.",
        fix=job_plan(
            "Let the job use Data Direct",
            f"Remove {_VARIABLE}=0, and measure with and without it",
            "Put NCCL 2.27.3 or newer and rdma-core 54 or newer into the job's image",
        ),
    )
