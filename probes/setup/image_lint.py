"""Judge an operating-system or container image for the hardware that it will meet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from probes.base.text import plural
from probes.base.unknown import Reason, Unknown, known
from probes.checks.registry import findings
from probes.facts.gpudirect import GdrPath
from probes.facts.jobs.nccl_conf import NCCL_CONF, read_nccl_conf
from probes.facts.kernel import boot
from probes.facts.system import distribution, libraries
from probes.facts.system.libraries import DIRECTORIES
from probes.host.protocol import Host
from probes.nccl.settings import LOC, parse_level, parse_number
from probes.queries.finding import Evidence, Finding, Severity, Status
from probes.setup.forecast import model
from probes.setup.forecast.forecast import forecast
from probes.setup.forecast.model import Forecast, ForecastRow, Outlook, RowBuilder
from probes.setup.forecast.next_start import hardware
from probes.setup.image_host import ImageHost
from probes.snapshot.examination import Examination, examine

# What checks of these areas look at is in a container too; services, limits and drivers are the node's.
_CONTAINER_AREAS = ("nccl", "tools")
_NOT_KNOWN = (
    "loaded modules and drivers",
    "firmware settings, Secure Boot and its keys",
    "ports, links and the fabric",
    "what is installed or mounted when the image starts",
)
_FIRST_NCCL_WITH_DMABUF = (2, 13, 4)  # NCCL release notes 2.13.4


class ImageKind(Enum):
    """What an image is."""

    SYSTEM = "operating-system image"
    CONTAINER = "container image"  # it has no kernel


@dataclass(frozen=True)
class ImageLint:
    """What an image will and will not do on the assumed hardware."""

    kind: ImageKind
    hardware: str  # name of the simulated node
    product: str  # "8 GPUs, NVIDIA H100 SXM5 80GB; NICs: mlx5"
    forecast: Forecast  # without kernels for a container image
    rows: tuple[ForecastRow, ...]  # libraries and settings of programs in the image
    findings: tuple[Finding, ...]  # of the doctor, on files of the image
    unanswered: int  # checks that need the running node
    not_known: tuple[str, ...] = _NOT_KNOWN


def lint_image(image: Host, assumed: Host) -> ImageLint:
    """Judge the files of `image` for the devices of `assumed`, a simulated node."""
    host = ImageHost(image, assumed)
    examination = examine(host)
    kind = ImageKind.SYSTEM if host.kernels else ImageKind.CONTAINER
    found = Forecast((), Unknown(Reason.NOT_THERE, "/boot", "no kernel"), "a container image has no kernel")
    if kind is ImageKind.SYSTEM:
        system = distribution.probe(host)
        found = forecast(host, examination, boot.probe(host, system, examination.node.kernel_release))
    of_checks, unanswered = _findings(examination, assumed, kind)
    return ImageLint(
        kind=kind,
        hardware=host.hardware_name,
        product=_product(examination),
        forecast=found,
        rows=tuple(_rows(host, examination, kind)),
        findings=of_checks,
        unanswered=unanswered,
    )


def exit_status(lint: ImageLint) -> int:
    """Return 0 fine, 1 at risk or warnings, 2 it will not work or critical, 3 unknown."""
    outlooks = [model.worst(lint.rows)]
    if lint.kind is ImageKind.SYSTEM:
        kernel = lint.forecast.chosen()
        outlooks.append(Outlook.UNKNOWN if kernel is None else kernel.outlook)
    severities = {finding.severity for finding in lint.findings}
    if Outlook.WILL_NOT in outlooks or Severity.CRITICAL in severities:
        return 2
    if Outlook.UNKNOWN in outlooks:
        return 3
    return 1 if Outlook.RISK in outlooks or Severity.WARNING in severities else 0


def _findings(examination: Examination, assumed: Host, kind: ImageKind) -> tuple[tuple[Finding, ...], int]:
    """Return what the doctor finds in the image, and how many checks need a running node.

    What the assumed node itself shows is about its hardware, and left out.
    """
    of_image = findings(examination)
    found = [finding for finding in of_image if finding.status is Status.FOUND]
    if kind is ImageKind.CONTAINER:
        found = [finding for finding in found if finding.area in _CONTAINER_AREAS]
    if found:
        names = [finding.id for finding in found]
        theirs = findings(examine(assumed), names)
        of_hardware = {finding.id for finding in theirs if finding.status is Status.FOUND}
        found = [finding for finding in found if finding.id not in of_hardware]
    return tuple(found), sum(finding.status is Status.UNKNOWN for finding in of_image)


def _product(examination: Examination) -> str:
    devices, gpus = hardware(examination), examination.node.gpus
    if isinstance(devices, Unknown) or isinstance(gpus, Unknown):
        return "unknown devices"
    names = sorted({gpu.name for gpu in gpus.gpus})
    nics = ", ".join((*devices.families, *devices.others)) or "none"
    return f"{devices.gpus} GPUs ({', '.join(names) or 'none'}); NICs: {nics}"


def _rows(host: Host, examination: Examination, kind: ImageKind) -> Iterable[ForecastRow]:
    """Yield the rows about what programs in the image load and read."""
    found = libraries.probe(host).found
    verbs = [library.path for library in found.get("libibverbs.so.1", ())]
    is_container = kind is ImageKind.CONTAINER
    row = RowBuilder("verbs-library", "libibverbs")
    if verbs:
        yield row.will("programs can use RDMA", Evidence(verbs[0], "there"))
        yield from _provider(host, examination, is_container)
    else:
        searched = Evidence(", ".join(DIRECTORIES[:5]), "no libibverbs.so.1")
        lack = "libibverbs.so.1 is missing: NCCL in this image uses TCP"
        lack_outside = "libibverbs.so.1 is missing: programs outside of containers cannot use RDMA"
        yield row.will_not(lack, searched) if is_container else row.risk(lack_outside, searched)
    if is_container:
        yield from _baked_driver([library.path for library in found.get("libcuda.so.1", ())])
    yield _nccl([known(library.version, "") for library in found.get("libnccl.so.2", ())])
    yield from _nccl_conf(host)


def _provider(host: Host, examination: Examination, is_container: bool) -> Iterable[ForecastRow]:
    """Look for libibverbs' plugin for ConnectX: LIBDIR/libibverbs/libmlx5-rdmavNN.so of rdma-core."""
    devices = hardware(examination)
    for family in () if isinstance(devices, Unknown) else devices.families:
        row = RowBuilder(f"verbs-provider-{family}", f"lib{family} provider")
        places = [f"{directory}/libibverbs" for directory in DIRECTORIES]
        plugins = [
            f"{place}/{name}"
            for place in places
            for name in known(host.names(place), ())
            if name.startswith(f"lib{family}-rdmav")
        ]
        if plugins:
            yield row.will("libibverbs has the plugin of these NICs", Evidence(plugins[0], "there"))
            continue
        reason = f"libibverbs finds no NIC without its {family} plugin (ibverbs-providers, rdma-core)"
        searched = Evidence(f"LIBDIR/libibverbs/lib{family}-rdmav*.so", "not there")
        yield row.will_not(reason, searched) if is_container else row.risk(reason, searched)


def _baked_driver(paths: list[str]) -> Iterable[ForecastRow]:
    row = RowBuilder("driver-library", "libcuda")
    if not paths:
        yield row.will("the node provides it when the container starts")
        return
    reason = "the image has a driver library of its own, which can hide the node's (version mismatch)"
    yield row.risk(reason, *(Evidence(path, "there") for path in paths[:2]))


def _nccl(versions: list[str]) -> ForecastRow:
    row = RowBuilder("nccl", "NCCL")
    if not versions:
        reason = "not found in the loader's directories; frameworks bundle their own"
        return row.unknown(reason, decides=False)
    numbers = tuple(int(part) for part in re.findall(r"[0-9]{1,6}", versions[0])[:3])
    if numbers and numbers < _FIRST_NCCL_WITH_DMABUF:
        reason = f"NCCL {versions[0]} has no DMA-BUF (2.13.4 or newer has): jobs need nvidia_peermem"
        return row.risk(reason, Evidence("libnccl.so.2", versions[0]))
    return row.will(f"NCCL {versions[0] or 'of unknown version'}", Evidence("libnccl.so.2", versions[0]))


def _nccl_conf(host: Host) -> Iterable[ForecastRow]:
    """Judge /etc/nccl.conf, which every job in the image reads."""
    conf, row = read_nccl_conf(host), RowBuilder("nccl-conf", "nccl.conf")
    if isinstance(conf, Unknown):
        if conf.reason is not Reason.NOT_THERE:
            yield row.unknown(f"{NCCL_CONF} is unknown ({conf})", decides=False)
        return
    values = conf.values
    level = parse_level(values.get("NCCL_NET_GDR_LEVEL", "SYS"))
    problems = [
        (bool(parse_number(values.get("NCCL_IB_DISABLE", "0"))), "NCCL_IB_DISABLE", "NCCL will not use RDMA"),
        (values.get("NCCL_NET", "").strip() == "Socket", "NCCL_NET", "NCCL will not use RDMA"),
        (level is not None and level.rank == LOC, "NCCL_NET_GDR_LEVEL", "NCCL never uses GPUDirect RDMA"),
    ]
    for applies, name, effect in problems:
        if applies:
            yield row.will_not(
                f"{effect}: {name}={values[name]}", Evidence(NCCL_CONF, f"{name}={values[name]}")
            )
            return
    if parse_number(values.get("NCCL_DMABUF_ENABLE", "1")) == 0:
        setting = Evidence(NCCL_CONF, f"NCCL_DMABUF_ENABLE={values['NCCL_DMABUF_ENABLE']}")
        yield row.risk(f"NCCL will not use {GdrPath.DMABUF.value}: jobs need nvidia_peermem", setting)
    elif conf.ignored:
        lines = (Evidence(NCCL_CONF, text) for text in conf.ignored[:3])
        yield row.risk(f"NCCL ignores {plural(len(conf.ignored), 'line')}", *lines)
    else:
        yield row.will("no setting keeps NCCL from GPUDirect RDMA", Evidence(NCCL_CONF, f"{len(values)} set"))
