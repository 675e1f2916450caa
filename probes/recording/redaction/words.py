"""Words and forms of words that a redacted recording keeps, because they identify no site.

Words that checks and screens look for must be in words.txt; tests/probes/recording/test_redaction_checks.py
names missing ones. Tools, services, modules and port counters come from their own tables.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

from probes.facts.kernel.modules import COMPANIONS, CORE_LADDER
from probes.facts.pci.nic_families import PROVIDERS
from probes.facts.rdma.counters import PORT_COUNTERS
from probes.facts.system.services import SERVICES
from probes.facts.system.tools import TOOLS


def _read_sections() -> dict[str, frozenset[str]]:
    words: set[str] = set()
    sections: dict[str, set[str]] = {}
    for line in files(__package__).joinpath("words.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            words = sections.setdefault(line.strip("[]"), set())
        elif not line.startswith("#"):
            words.update(line.split())
    return {name: frozenset(words) for name, words in sections.items()}


_SECTIONS = _read_sections()
PROGRAMS = _SECTIONS["programs"] | frozenset(TOOLS)
SYMBOLS = _SECTIONS["symbols"]
"""Symbols of kernel modules whose providers matter."""
VARIABLES = _SECTIONS["variables"]
"""Variables of NCCL, UCX, libfabric and NVSHMEM; other names are user-defined."""
OWN_WORDS = _SECTIONS["sentences"]
"""Words of sentences that gdrtop writes itself. A name on a node can be plain English too: these are kept in
gdrtop's text only."""
VOCABULARY = (
    frozenset(
        word.lower()
        for words in (
            *(words for name, words in _SECTIONS.items() if name != "sentences"),
            *(PROGRAMS, TOOLS, SERVICES, CORE_LADDER, COMPANIONS),
            (counter.name for counter in PORT_COUNTERS),
        )
        for word in words
    )
    | {f"{service}.service" for service in SERVICES}
    | {
        f"{module.replace('_', dash)}{suffix}"
        for module in _SECTIONS["modules"]
        for dash in ("_", "-")
        for suffix in ("", ".ko", ".ko.gz", ".ko.xz", ".ko.zst")
    }
)

# Forms whose values identify nothing: numbered devices, versions, quantities.
_FORMS = re.compile(
    "|".join(
        (
            rf"(?:{'|'.join(PROVIDERS)}|cxi)_?\d{{1,3}}",
            r"mlx5_bond_\d{1,2}|802\.3ad",
            r"(?:ib|roce|iw|opa|rdma)(?:P\d{1,5})?p\d{1,3}s\d{1,3}(?:f\d{1,2})?(?:v\d{1,3})?",
            r"(?:en|ib|wl|ww)(?:P\d{1,5})?(?:p\d{1,3})?s\d{1,4}(?:f\d{1,2})?(?:np\d{1,2})?(?:d\d{1,2})?(?:v\d{1,3})?"
            r"(?:\.\d{1,4})?",
            r"(?:eno|eth|hsn|ib|bond|br|docker|veth|team|vlan|rdma|wlan|tun|tap|virbr|gpu\d{1,2}rdma|en)\d{1,4}"
            r"(?:np\d{1,2})?(?:\.[0-9a-f]{1,4})?",
            r"(?:node|cpu|uverbs|umad|issm|nvidia|dmar|ivhd|card|renderD|ptp|hwmon|nvme|loop|sd[a-z]|dm-|md)\d{0,4}",
            r"(?:nvidia-(?:nvswitch|cap)|mei|kmsg|smmu3\.0x|nvme\d{1,3}n)\d{1,4}(?:p\d{1,3})?",
            r"pci[0-9a-f]{4,8}|channel\d{1,5}",
            # Debian's names of the driver's files
            r"nvidia[-_](?:current|tesla(?:[-_]\d{3})?)(?:[-_]open)?(?:[-_](?:uvm|modeset|drm|peermem))?"
            r"(?:\.ko(?:\.(?:gz|xz|zst))?)?|-[ir]|--ignore-install|CMDLINE_OPTS",
            r"resource\d(?:_wc)?",
            r"MT\d{3,5}",
            r"[ABHLTVPKM]\d{1,4}[A-Z]{0,2}|G[BHA]\d{2,3}[A-Z]?",
            r"\d{1,7}(?:\.\d{1,4})?(?:[kKMGTP]i?[Bb]?|[KMGT]T?|GT|Gb|W|[kMG]?Hz|m?s|us|ns|[xXCB]|bit|st|nd|rd|th)",
            r"x\d{1,2}|SP\d|\d{1,3}(?:\.\d{1,4}){2}g",  # SUSE's service packs; versions of AWS's efa
            r"el\d{1,2}(?:_\d{1,2})?|fc\d{2}|amzn\d{1,4}|sles\d{1,2}|deb\d{1,2}u?\d?|ubuntu\d(?:\.\d{1,2})*|p\d|rc\d{1,2}",
            r"cu\d{2,3}|python\d(?:\.\d{1,2})?",
            r"(?:nvidia_nccl_cu\d{1,3}|nixl_cu\d{1,3}|mooncake_transfer_engine(?:_(?:cuda13|non_cuda))?)-\d[0-9a-z.]{0,30}\.dist-info",
            r"\.?nixl_cu\d{1,3}(?:\.mesonpy)?\.libs",
            r"lib(?:nccl(?:-net|-tuner)?(?:-(?:aws|ofi|sharp|ucx|spectrum|spcx))?|ibverbs|mlx[45]|cuda|cudart|ucp|uct|ucs|fabric"
            r"|nvshmem_host|nixl|gdrapi|nvidia-ml|efa|rdmacm|plugin_UCX|uct_(?:cuda|ib|cma|rdmacm|xpmem))(?:-[0-9a-f]{8})?"
            r"\.so(?:\.\d{1,6}){0,5}",
            r"nvshmem_(?:bootstrap_(?:mpi|shmem|pmi[2x]?|uid)|transport_(?:ibrc|ibdevx|ibgda|libfabric|ucx))"
            r"\.so(?:\.\d{1,6}){0,5}",
            r"mooncake|engine\.so",  # of the wheel of Mooncake's transfer engine
            rf"lib(?:{'|'.join(PROVIDERS)})-rdmav\d{{1,3}}\.so",
            r"[-+_.%@]{1,4}",
            r"(?:MLNX_OFED_LINUX|MLNX_EN|OFED-internal|DOCA_OFED|doca-ofed)-\d{1,3}(?:[.-]\d{1,5}){1,8}",
            r"smmu\d{1,3}",
            r"mlx5_core\.(?:rdma|eth|sf|vnet)\.\d{1,4}",
            r"(?:kernel|config|vmlinu[xz]|Image|initrd(?:\.img)?|initramfs|linux-modules)-\d(?:\.\d{1,8})+(?:[-_.](?:\d{1,8}|el\d{1,2}(?:_\d{1,2})?|generic|nvidia|azure|aws|gcp|64kb?|x86_64"
            r"|aarch64|uek|oracle|amzn\d{1,4}|default))*(?:\.img)?",
            # NVIDIA's operators and NIC driver, and packages of the driver: their branch is part of the name.
            r"(?:gpu-operator-)?v\d{2}\.\d{1,2}\.\d{1,2}|doca\d(?:[.-]\d{1,4}){3,9}",
            r"nvidia-(?:utils|driver|dkms|kernel-source|compute-utils)-\d{3}(?:-(?:server|open))*",
            # Machine types of Amazon EC2.
            r"(?:p|g)\d[a-z]{0,3}(?:-[a-z]+\d{3})?\.(?:metal|\d{0,2}xlarge)(?:-\d{1,2}xl)?",
            r"\d{1,6}(?:-\d{1,6})+",
        )
    )
)
_PART = re.compile(r"[-_.+~]")
VERSION = re.compile(r"v?\d{1,8}(?:\.\d{1,8})+")
_OCTET = r"(?:25[0-5]|2[0-4]\d|[01]?\d?\d)"
IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)")
_SUFFIXES = (
    *(
        ".conf",
        ".service",
        ".target",
        ".socket",
        ".timer",
        ".mount",
        ".slice",
        ".scope",
        ".wants",
        ".requires",
    ),
    *(".d", ".rules", ".ko", ".ko.gz", ".ko.xz", ".ko.zst", ".so", ".xml", ".log"),
)


@lru_cache(maxsize=8192)
def is_known(word: str) -> bool:
    """Return whether a word does not identify anyone."""
    return word.lower() in VOCABULARY or _FORMS.fullmatch(word) is not None or _is_version(word)


def _is_version(word: str) -> bool:
    match = VERSION.match(word)
    if match is None or IPV4.match(word):
        return False
    rest = word[match.end() :]
    return not rest or (rest[0] in "-_.+~" and all(map(_is_version_part, _PART.split(rest))))


def _is_version_part(part: str) -> bool:
    is_short = part.isdecimal() and len(part) < 9
    return not part or is_short or part.lower() in VOCABULARY or _FORMS.fullmatch(part) is not None


def known_suffix(word: str) -> str:
    """Return the suffix of a file name; "" if it is unknown."""
    return next((suffix for suffix in _SUFFIXES if word.endswith(suffix)), "")
