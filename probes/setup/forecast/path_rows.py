"""Forecast of the two paths: DMA-BUF by the driver's flavor and the kernel, nvidia_peermem by its symbols."""

from __future__ import annotations

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.checks.registry import findings
from probes.facts.gpudirect import GdrPath, parse_driver_version
from probes.facts.gpudirect_vendors import EFA_PEERMEM
from probes.facts.kernel.depmod import origin_of
from probes.facts.kernel.release import parse_version
from probes.queries.finding import Evidence, Status
from probes.queries.modules import PEERMEM, is_present, module_of
from probes.setup.forecast.model import ForecastRow, Outlook, RowBuilder
from probes.setup.forecast.next_start import Hardware, Start
from probes.snapshot.examination import Examination

_FIRST_OPEN_DRIVER = (515, 43, 4)  # the first with nv-dmabuf.c
_ALWAYS_OPEN_BRANCH = 620  # no proprietary kernel modules from this branch on (NVIDIA driver guide 620)
_FIRST_KERNEL = (5, 12)
_PROVIDERS = ("ib_core", "ib_uverbs", "ib_peer_mem")


def path_rows(examination: Examination, devices: Hardware, start: Start) -> list[ForecastRow]:
    """Return the rows about DMA-BUF and nvidia_peermem's build, or about what EFA and Slingshot use."""
    if devices.is_slingshot:
        return [_slingshot(examination, start)]
    if devices.is_efa:
        return [_dmabuf(examination, devices, start), _efa_peermem(examination, start)]
    return [_dmabuf(examination, devices, start), *_peermem(examination, devices, start)]


def _dmabuf(examination: Examination, devices: Hardware, start: Start) -> ForecastRow:
    """Judge DMA-BUF: open modules, a kernel with dma-buf, GPUs and NICs that support it."""
    row = RowBuilder("dmabuf", "DMA-BUF", GdrPath.DMABUF)
    for answer in (_by_nics(row, examination, devices, start), _by_kernel(row, start)):
        if answer is not None:
            return answer
    if start.modules.entry("nvidia") is None:
        return row.unknown("depends on the driver that is built for this kernel", decides=False)
    is_open, evidence = _is_open(examination, start)
    if isinstance(is_open, Unknown):
        reason = f"it is unknown whether the driver's modules are the open ones ({is_open})"
        return row.unknown(reason, evidence)
    if not is_open:
        reason = "the driver's modules are proprietary, and DMA-BUF needs the open ones"
        return row.will_not(reason, evidence)
    version = known(_version(start), "")
    numbers = parse_driver_version(version)
    if numbers is not None and numbers < _FIRST_OPEN_DRIVER:
        reason = f"driver {version} is older than 515.43.04"
        return row.will_not(reason, evidence)
    by_gpus = _by_gpus(row, examination, start)
    return by_gpus or row.will("open kernel modules, and a kernel with DMA-BUF", evidence)


def _by_gpus(row: RowBuilder, examination: Examination, start: Start) -> ForecastRow | None:
    """Judge by what libcuda says of the GPUs, where the running driver is the one of the next boot."""
    direct = examination.node.gpudirect
    support = () if isinstance(direct, Unknown) else tuple(direct.gpu_support.values())
    if start.is_running and support and all(gpu.dmabuf is False for gpu in support):
        reason = support[0].reason or "the GPUs do not support DMA-BUF"
        return row.will_not(reason, Evidence("libcuda", support[0].evidence))
    return None


def _by_nics(
    row: RowBuilder, examination: Examination, devices: Hardware, start: Start
) -> ForecastRow | None:
    if devices.families == ("mlx4",) and not devices.others:
        evidence = Evidence("/sys/bus/pci/devices", "only mlx4 NICs")
        return row.will_not("ConnectX-3 and older NICs do not support DMA-BUF", evidence)
    direct = examination.node.gpudirect
    answers = {} if isinstance(direct, Unknown) else direct.nic_dmabuf
    if start.is_running and answers and all(answer is False for answer in answers.values()):
        evidence = Evidence("ibv_reg_dmabuf_mr probe", f"not supported on {', '.join(list(answers)[:8])}")
        return row.will_not("the NIC driver does not support DMA-BUF", evidence)
    return None


def _by_kernel(row: RowBuilder, start: Start) -> ForecastRow | None:
    """Judge the kernel by its config, else by its release; OFED brings DMA-BUF to older kernels."""
    release = start.modules.release
    if start.modules.dmabuf_config is False:
        evidence = Evidence(f"/boot/config-{release}", "DMA-BUF is not set for mlx5")
        return row.will_not("the kernel is configured without DMA-BUF", evidence)
    version = parse_version(release)
    if isinstance(version, Unknown) or version >= _FIRST_KERNEL:
        return None
    evidence = Evidence("/lib/modules", release)
    core = start.modules.entry("ib_core")
    if core is not None and origin_of(core.relative) != "kernel":
        return None if start.is_running else row.unknown(_BACKPORT, evidence)
    return row.will_not("the kernel is older than 5.12, and there is no OFED", evidence)


_BACKPORT = "the kernel is older than 5.12; it is unknown whether its OFED adds DMA-BUF"


def _is_open(examination: Examination, start: Start) -> tuple[Maybe[bool], Evidence]:
    """Return whether this kernel's nvidia.ko is the open one: "Dual MIT/GPL" instead of "NVIDIA"."""
    file = start.modules.file("nvidia")
    text = file if isinstance(file, Unknown) else file.license
    evidence = Evidence("modinfo -F license nvidia", str(text))
    if not isinstance(text, Unknown):
        return "GPL" in text, evidence
    numbers = parse_driver_version(known(_version(start), ""))
    if numbers is not None and numbers[0] >= _ALWAYS_OPEN_BRANCH:
        return True, Evidence("modinfo -F version nvidia", str(known(_version(start), "")))
    direct = examination.node.gpudirect
    if start.is_running and not isinstance(direct, Unknown) and direct.dmabuf.usable is True:
        return True, Evidence("/proc/driver/nvidia/version", "DMA-BUF works now")
    return text, evidence


def _version(start: Start) -> Maybe[str]:
    file = start.modules.file("nvidia")
    return file if isinstance(file, Unknown) else file.version


def _peermem(examination: Examination, devices: Hardware, start: Start) -> list[ForecastRow]:
    """Judge nvidia_peermem's file: there, built with symbols, against this kernel's RDMA core."""
    row, modules = RowBuilder("peermem-build", "nvidia_peermem", GdrPath.PEERMEM), start.modules
    if not devices.families and modules.peer_memory != "ib_peer_mem":
        return [row.will_not("no NIC here can use it")]
    entry = modules.entries.get(PEERMEM)
    if entry is None or isinstance(entry, Unknown):
        absent = entry is None or entry.reason is Reason.NOT_THERE
        outlook = Outlook.WILL_NOT if absent else Outlook.UNKNOWN
        lack = "there is no nvidia_peermem for this kernel"
        reason = lack if absent else f"unknown ({entry})"
        return [row.of(outlook, reason, Evidence(modules.index, "no nvidia_peermem"))]
    listed = Evidence(modules.index, f"nvidia_peermem needs {', '.join(entry.depends) or 'nothing'}"[:200])
    if not set(entry.depends) & set(_PROVIDERS):
        reason = "built without peer-memory symbols: install OFED, then rebuild the GPU driver"
        return [row.will_not(reason, listed)]
    provider = modules.peer_memory
    exported = Evidence(f"/lib/modules/{modules.release}/modules.symbols", str(provider))
    if isinstance(provider, Unknown) and "ib_core" not in modules.builtin:
        absent = provider.reason is Reason.NOT_THERE
        outlook = Outlook.WILL_NOT if absent else Outlook.UNKNOWN
        lack = "this kernel's RDMA core exports no peer-memory symbols"
        reason = lack if absent else f"unknown ({provider})"
        return [row.of(outlook, reason, listed, exported)]
    if isinstance(provider, str) and provider not in entry.depends:
        reason = f"nvidia_peermem was built for another RDMA core: it does not use {provider}"
        return [row.will_not(reason, listed, exported)]
    return [_against_core(row, examination, start, (listed, exported))]


def _efa_peermem(examination: Examination, start: Start) -> ForecastRow:
    """Judge efa_nv_peermem: on disk, and the open NVIDIA modules that it needs (efa_nv_peermem_main.c)."""
    row, modules = RowBuilder("efa-peermem", EFA_PEERMEM, GdrPath.EFA), start.modules
    if modules.entry(EFA_PEERMEM) is None:
        absent = Evidence(modules.index, "not listed")
        return row.will_not(f"there is no {EFA_PEERMEM} for this kernel", absent)
    is_open, evidence = _is_open(examination, start)
    if isinstance(is_open, Unknown):
        reason = f"it is unknown whether the driver's modules are the open ones ({is_open})"
        return row.unknown(reason, evidence)
    if not is_open:
        return row.will_not(f"{EFA_PEERMEM} refuses NVIDIA's proprietary modules", evidence)
    return row.will("the EFA driver loads it when a program registers GPU memory", evidence)


def _slingshot(examination: Examination, start: Start) -> ForecastRow:
    """Judge how the cxi driver reaches GPU memory: DMA-BUF with open modules, else its own P2P interface."""
    row = RowBuilder("slingshot", "Slingshot", GdrPath.CXI)
    if start.modules.entry("nvidia") is None:
        return row.unknown("depends on the driver that is built for this kernel", decides=False)
    is_open, evidence = _is_open(examination, start)
    if is_open is True:
        return row.will("open kernel modules, from which libfabric gets DMA-BUFs", evidence)
    direct = examination.node.gpudirect
    if start.is_running and not isinstance(direct, Unknown) and direct.peermem.usable is True:
        return row.will("cxi_ss1 was built with NVIDIA's P2P interface", evidence)
    return row.unknown("no file shows whether cxi_ss1 was built with NVIDIA's P2P interface", evidence)


def _against_core(
    row: RowBuilder, examination: Examination, start: Start, evidence: tuple[Evidence, ...]
) -> ForecastRow:
    """Judge whether the build fits the RDMA core on disk, by refusals in the log and by the files' times."""
    refused = _refusal(examination) if start.is_running else None
    if refused is not None:
        reason = "the kernel refused to load it since the last boot: it was built for another RDMA core"
        return row.will_not(reason, *evidence, refused)
    peermem, core = start.modules.entry(PEERMEM), start.modules.entry("ib_core")
    times = known(start.times, {})
    if peermem is not None and core is not None and peermem.path in times and core.path in times:
        late = times[core.path] - times[peermem.path]
        if late > 0 and origin_of(core.relative) != "kernel" and not _works_now(examination, start):
            reason = "nvidia_peermem is older than OFED's ib_core: rebuild the GPU driver after OFED"
            shown = Evidence(f"stat {peermem.path}", f"{_duration(late)} older than {core.path}")
            return row.risk(reason, *evidence, shown)
    return row.will("built against this kernel's RDMA core", *evidence)


def _works_now(examination: Examination, start: Start) -> bool:
    """Return whether nvidia_peermem is loaded, beside the ib_core that the next boot loads again."""
    peermem, core = module_of(examination, PEERMEM), module_of(examination, "ib_core")
    if not start.is_running or isinstance(peermem, Unknown) or isinstance(core, Unknown):
        return False
    file = start.modules.file("ib_core")
    return is_present(peermem) and not isinstance(file, Unknown) and core.srcversion == file.srcversion


def _refusal(examination: Examination) -> Evidence | None:
    """Return what the doctor found about the symbols of nvidia_peermem on the running kernel."""
    for finding in findings(examination, _MISMATCH):
        if finding.status is Status.FOUND and finding.evidence:
            return finding.evidence[-1]
    return None


_MISMATCH = ("peermem-symbol-version-mismatch", "peermem-unknown-symbol-inbox-core")


def _duration(seconds: int) -> str:
    if seconds < 7200:
        return f"{max(1, seconds // 60)} min"
    return f"{seconds // 3600} h" if seconds < 172800 else f"{seconds // 86400} days"
