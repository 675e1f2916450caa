"""Kernel modules as lsmod and modinfo print them. Sources: kmod tools/lsmod.c, tools/modinfo.c.

A list that grep cut shows what is loaded, and only of the word that grep looked for what is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from probes.base.frozen import frozen
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known
from probes.facts.gpu.driver_package import CLOSED_LICENSE
from probes.facts.gpu.gpus import Flavor, parse_version
from probes.facts.gpudirect_probe import IB_EXPORTERS
from probes.facts.kernel.depmod import origin_of
from probes.facts.kernel.module_files import ModuleFile, parse_modinfo
from probes.facts.kernel.modules import EFA_PEERMEM, LADDER, PEERMEM
from probes.facts.pci.nic_families import CONNECTX
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.plans.peermem import OLDER
from probes.read.findings import statement
from probes.read.reading import Parsed, Section, Statement

_OF_INTEREST = (
    r"(?:nvidia|nv_peer_mem|gdrdrv|nouveau|mlx(?!\d_\d)|ib_|rdma_|iw_cm|efa|irdma|bnxt_(?!re\d)|cxi_)"
)
SIGN = rf"\s*(?:Module\s+Size\s+Used by|{_OF_INTEREST}\w*\s+\d{{4,9}}\s+-?\d{{1,6}}(?:\s+[\w,\[\]-]+)?\s*$)"
CUT = r"(?:sudo )?lsmod\s*\|\s*(?:sudo )?[ef]?grep\s"
DRIVER_SIGN = r"\s*NVRM version:\s"
INFO_SIGN = r"\s*filename:\s+(?:/|\(builtin\))"
_ROW = re.compile(r"\s*(\w{2,60})\s+(\d{1,9})\s+(-?\d{1,6})(?:\s+([\w,\[\]-]+))?\s*$")
_HEADER = re.compile(r"\s*Module\s+Size\s+Used by")
_WORDS = re.compile(r"grep\s+((?:-\w+\s+)*)[\"']?([\w|\\-]{2,60})[\"']?\s*$")
_OPTIONS = frozenset("-iEFnw ")  # of grep, with which it prints each row that has the word
_ELLIPSIS = re.compile(r"\s*[\[(<]*(?:\.{2,}|…|snip\b)")
_PROPRIETARY, _NO_PEERMEM = "the proprietary modules are loaded", "no peer-memory module is loaded"
_PEERMEMS = frozenset((PEERMEM, OLDER, EFA_PEERMEM))
_WHOLE_LIST = 25  # rows; fewer may be a part of a list


@frozen
class _Module:
    """A row of lsmod."""

    name: str
    uses: int
    place: Place


def read_loaded(section: Section) -> Parsed:
    """Read lsmod, or what grep left of it."""
    modules: dict[str, _Module] = {}
    has_header = False
    read = 0
    for number, line in enumerate(section.lines):
        place = section.at(number)
        if _HEADER.match(line):
            has_header = True
        elif match := _ROW.match(line):
            modules[match[1]] = _Module(match[1], int(match[3]), place)
            for user in (match[4] or "").split(","):  # which are loaded, too
                if user not in ("", "-", "[permanent]"):
                    modules.setdefault(user, _Module(user, 0, place))
        else:
            continue
        read += 1
    is_cut = "|" in section.command or any(map(_ELLIPSIS.match, section.lines))
    is_whole = not is_cut and has_header and len(modules) >= _WHOLE_LIST
    absent = _absent(modules, section.command, is_whole)
    statements = tuple(_faults(modules, absent, section.place))
    facts = {_NO_PEERMEM: section.place} if _PEERMEMS.issubset(absent) else {}
    return Parsed(read, statements, shows=_shows(modules, absent), facts=facts)


def _absent(modules: Mapping[str, _Module], command: str, is_whole: bool) -> tuple[str, ...]:
    """Return the modules of GPUDirect RDMA that are known not to be loaded (or are built in)."""
    match = _WORDS.search(command) if "|" in command else None
    if is_whole:
        asked = LADDER
    elif match is None or not _OPTIONS.issuperset(match[1]):
        asked = ()
    else:
        words = re.split(r"\\?\|", match[2].replace("-", "_"))
        is_exact = "w" in match[1]
        asked = tuple(
            name
            for name in LADDER
            if any(word == name if is_exact else word and word in name for word in words)
        )
    return tuple(name for name in asked if name not in modules)


def _shows(modules: Mapping[str, _Module], absent: tuple[str, ...]) -> str:
    loaded = [
        f"{name} (in use)" if name in (PEERMEM, OLDER) and modules[name].uses > 0 else name
        for name in (*LADDER, "nouveau")
        if name in modules
    ]
    sentences = [f"Loaded: {join_limited(loaded, 16)}." if loaded else ""]
    if PEERMEM in absent:
        sentences.append(f"{PEERMEM} is not loaded.")
    if "mlx_compat" in modules:
        sentences.append("The RDMA modules are those of OFED (mlx_compat).")
    return " ".join(filter(None, sentences))


def _faults(modules: Mapping[str, _Module], absent: tuple[str, ...], place: Place) -> Iterator[Statement]:
    if "nouveau" in modules and "nvidia" not in modules:
        place_of_nouveau = modules["nouveau"].place
        yield statement("gpu-without-driver-nouveau", place_of_nouveau, weight=Weight.WARNING)
    if OLDER in modules and PEERMEM in modules:
        yield statement("nv-peer-mem-conflict-twice", modules[OLDER].place)
    elif OLDER in modules and PEERMEM in absent:
        yield statement("nv-peer-mem-conflict", modules[OLDER].place, weight=Weight.NOTE)
    if "nvidia" in modules and PEERMEM in absent and OLDER not in modules:
        yield statement("peermem-not-loaded", place, weight=Weight.NOTE)
    for user, needed, name in (
        ("nvidia", "nvidia_uvm", "nvidia-uvm-not-loaded"),
        (*CONNECTX.modules, "mlx5-ib-not-loaded"),
        ("ib_core", "ib_uverbs", "ib-uverbs-not-loaded"),
    ):
        if user in modules and needed in absent:
            where = modules[user].place
            yield statement(name, where, weight=Weight.WARNING, user=user, needed=needed)


# modinfo.

_FIELD = re.compile(r"\s*[a-z_]{1,20}:\s|\s+[0-9A-F:]{20,}$")
_FILE = re.compile(r"(?:/usr)?/lib/modules/([^/\s]{1,128})/(\S{1,400}\.ko(?:\.\w{2,4})?)")
_MOST_FILES = 32  # that are named


def read_info(section: Section) -> Parsed:
    """Read modinfo of one or more modules."""
    lines = [line.strip() for line in section.lines if _FIELD.match(line)]
    files = parse_modinfo("\n".join(lines))
    # What grep left may lack the field.
    has_depends = sum(line.startswith("depends:") for line in lines) == len(files)
    faults = [fault for file in files.values() for fault in _faults_of(file, section.place, has_depends)]
    shown = list(filter(None, map(_shown, files.values())))[:_MOST_FILES]
    return Parsed(len(lines), tuple(faults), shows=" ".join(shown))


def _shown(file: ModuleFile) -> str:
    match = _FILE.match(file.path)
    if match is None:
        return f"{file.name} is built into the kernel." if file.path == "(builtin)" else ""
    version = "" if isinstance(file.version, Unknown) else f" {file.version}"
    origin = origin_of(match[2])
    words = [_ORIGINS.get(origin, origin)]
    if file.name == "nvidia" and not isinstance(file.license, Unknown):
        words.append("proprietary modules" if file.license == CLOSED_LICENSE else "open modules")
    return f"{file.name}{version} is installed for kernel {match[1]} ({', '.join(words)})."


def _faults_of(file: ModuleFile, place: Place, has_depends: bool) -> Iterator[Statement]:
    match = _FILE.match(file.path)
    built_for = known(file.kernel, "")
    if match is not None and built_for and built_for != match[1]:
        # Red Hat links modules of one kernel into the directories of compatible ones.
        weight = Weight.NOTE if match[2].startswith("weak-updates/") else None
        yield statement(
            "module-wrong-vermagic",
            place,
            weight=weight,
            module=file.name,
            kernel=built_for,
            directory=match[1],
        )
    if file.name == PEERMEM and has_depends and not IB_EXPORTERS.intersection(file.depends):
        depends = ", ".join(file.depends) or "nothing"
        yield statement("peermem-built-without-symbols", place, depends=depends)


_ORIGINS = {"kernel": "of the distribution's kernel", "DKMS": "by DKMS", "OFED": "of OFED"}

# /proc/driver/nvidia/version.


def read_driver(section: Section) -> Parsed:
    """Read /proc/driver/nvidia/version: which of NVIDIA's modules are loaded."""
    parsed = parse_version(section.lines[0].strip())
    if parsed is None:
        return Parsed()
    version, flavor = parsed
    is_open = flavor is Flavor.OPEN
    shows = f"NVIDIA driver {version}, {'open' if is_open else 'proprietary'} kernel modules."
    if is_open:
        return Parsed(1, shows=shows)
    note = statement("dmabuf-needs-open-module", section.place, weight=Weight.NOTE)
    return Parsed(1, (note,), shows=shows, facts={_PROPRIETARY: section.place})


def without_path(tables: Iterable[Parsed]) -> Statement | None:
    """Return what it means if the driver exports no DMA-BUFs and no peer-memory module is loaded."""
    facts = {name: place for parsed in tables for name, place in parsed.facts.items()}
    if not {_PROPRIETARY, _NO_PEERMEM} <= facts.keys():
        return None
    return statement("no-gdr-path", facts[_NO_PEERMEM])
