"""What a text can be, and how a line shows it.

A kind begins where a line has its sign, and goes on until another one begins. Signs are what the programs
themselves print. A kind is sure once its signs have been held against a real output (tests/reports).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from probes.base.frozen import frozen
from probes.facts.pci.nic_families import FAMILIES
from probes.read import (
    benchmark_json,
    benchmarks,
    dcgm,
    kernel_modules,
    mlxlink,
    nvidia_smi,
    pci_functions,
    ports,
    rdma_tools,
    system_settings,
    topology,
)
from probes.read.reading import Parsed, Section


@frozen
class Kind:
    """A kind of text."""

    name: str
    sign: str  # a regular expression, at the beginning of a line
    read: Callable[[Section], Parsed] | None = None  # None: its lines are explained one by one
    is_sure: bool = True
    is_document: bool = False  # no messages of programs stand between its lines
    command: str = ""  # by whose prompt a text without a sign is known
    holds: str = ""  # a kind whose sign may stand between its lines
    silent: str = ""  # commands, by their beginning, that print nothing where there is nothing


KINDS: tuple[Kind, ...] = (
    Kind("ibstat", r"\s*CA '[\w.-]+'", ports.read_ibstat),
    Kind("ibstatus", r"\s*Infiniband device '", ports.read_ibstatus),
    Kind("ibv_devinfo", r"\s*hca_id:\s", ports.read_devinfo),
    Kind("rdma resource", rdma_tools.RESOURCES_SIGN, rdma_tools.read_resources, is_sure=False),
    Kind("rdma statistic", rdma_tools.STATISTIC_SIGN, rdma_tools.read_statistic, is_sure=False),
    Kind("rdma link", r"\s*(?:link |\d+/\d+: )[\w.-]+/\d+:? .*\bstate [A-Z]", ports.read_rdma_link),
    Kind("show_gids", r"\s*DEV\s+PORT\s+INDEX\s+GID", ports.read_gids),
    Kind(
        "ibdev2netdev",
        r"(?=.*==> )\s*(?:[0-9a-f]{4}:\S+ )?[\w.-]+ (?:\(.*\) )?.{0,200}port +\d+ +(?:\(\w+\)\s*)?==> ",
        ports.read_netdevs,
    ),
    Kind("nvidia-smi topo", topology.MATRIX_SIGN, topology.read_matrix),
    Kind("NCCL topology XML", topology.SYSTEM_SIGN, topology.read_system, is_document=True),
    Kind("NCCL graph XML", topology.GRAPHS_SIGN, topology.read_graphs, is_document=True),
    Kind("nvidia-smi", nvidia_smi.TABLE_SIGN, nvidia_smi.read_table),
    Kind("nvidia-smi -q", nvidia_smi.QUERY_SIGN, nvidia_smi.read_query, is_document=True),
    Kind("nvidia-smi -q -x", nvidia_smi.XML_SIGN, nvidia_smi.read_xml, is_document=True),
    Kind("nvidia-smi nvlink", nvidia_smi.LINKS_SIGN, nvidia_smi.read_links),
    Kind("dcgmi", dcgm.SIGN, dcgm.read_box, is_sure=False),
    Kind("lspci", pci_functions.SIGN, pci_functions.read_functions, is_document=True),
    Kind("lspci -t", pci_functions.TREE_SIGN, pci_functions.read_tree),
    Kind("lsmod", kernel_modules.SIGN, kernel_modules.read_loaded, silent=kernel_modules.CUT),
    Kind("modinfo", kernel_modules.INFO_SIGN, kernel_modules.read_info),
    Kind("perftest", benchmarks.PERFTEST_SIGN, benchmarks.read_perftest),
    Kind("nccl-tests", benchmarks.NCCL_TESTS_SIGN, benchmarks.read_nccl_tests),
    Kind("nvbandwidth", benchmarks.NVBANDWIDTH_SIGN, benchmarks.read_nvbandwidth),
    Kind("perftest JSON", benchmark_json.PERFTEST_SIGN, benchmark_json.read_perftest, is_sure=False),
    Kind("nvbandwidth JSON", benchmark_json.NVBANDWIDTH_SIGN, benchmark_json.read_bandwidths),
    Kind(
        "nccl-tests JSON",
        benchmark_json.NCCL_TESTS_SIGN,
        benchmark_json.read_collectives,
        is_sure=False,
        is_document=True,
    ),
    Kind("gdrcopy", benchmarks.GDRCOPY_SIGN, benchmarks.read_gdrcopy),
    Kind(
        "limits",
        system_settings.LIMITS_SIGN,
        system_settings.read_limits,
        command=system_settings.LOCKED_COMMAND,
    ),
    Kind("kernel command line", system_settings.CMDLINE_SIGN, system_settings.read_cmdline),
    Kind("rdma system", rdma_tools.SYSTEM_SIGN, rdma_tools.read_system, is_sure=False),
    Kind("ibv_devices", rdma_tools.DEVICES_SIGN, rdma_tools.read_devices, is_sure=False),
    Kind("ethtool", rdma_tools.SETTINGS_SIGN, rdma_tools.read_settings, is_sure=False),
    Kind("ethtool -i", rdma_tools.DRIVER_SIGN, rdma_tools.read_driver, is_sure=False),
    Kind("ethtool -S", rdma_tools.ETHTOOL_SIGN, rdma_tools.read_ethtool, is_sure=False),
    Kind("mlxlink", mlxlink.SIGN, mlxlink.read_mlxlink),
    Kind("counters", rdma_tools.FILES_SIGN, rdma_tools.read_files),
    Kind("ucx_info", rdma_tools.UCX_SIGN, rdma_tools.read_ucx_info),
    Kind("rocm-smi", rdma_tools.ROCM_SIGN, rdma_tools.read_rocm_smi, holds="nvidia-smi topo"),
    Kind("perfquery", rdma_tools.PERFQUERY_SIGN, rdma_tools.read_perfquery, is_sure=False),
    Kind("ibqueryerrors", rdma_tools.QUERY_ERRORS_SIGN, rdma_tools.read_query_errors),
    Kind("ibdiagnet", rdma_tools.SUMMARY_SIGN, rdma_tools.read_summary),
    Kind("mlxfwmanager", ports.FIRMWARE_SIGN, ports.read_firmware),
    Kind("mst status", ports.MST_SIGN, ports.read_mst),
    Kind("ethtool -m", mlxlink.MODULE_SIGN, mlxlink.read_module),
    Kind("driver version", kernel_modules.DRIVER_SIGN, kernel_modules.read_driver, is_document=True),
    Kind("Fabric Manager log", nvidia_smi.FABRIC_LOG_SIGN, nvidia_smi.read_log),
    Kind("nvidia-imex-ctl", nvidia_smi.DOMAIN_SIGN, nvidia_smi.read_domain, is_sure=False),
)
"""In the order in which their signs are tried. Where two answer the same question, the later one counts."""

# Words by which a line of a log belongs to a program, wherever they stand.
LOGS = {
    "NCCL": "NCCL log",
    "RCCL": "RCCL log",
    "UCX": "UCX log",
    "UCC": "UCC log",
    "libfabric": "libfabric log",
    "NVSHMEM": "NVSHMEM log",
    "ProcessGroupNCCL": "PyTorch log",
    "DistBackendError": "PyTorch log",
    "nixl": "NIXL log",
    "NIXL": "NIXL log",
    "NVRM": "kernel log",
    "nvidia_peermem": "kernel log",
    **{module: "kernel log" for family in FAMILIES for module in family.modules},
    "pcieport": "kernel log",
    "DMAR": "kernel log",
}
PROMPT = re.compile(
    r"(?:\(\w[\w.-]{0,40}\) )?"
    r"(?:\[?[\w.-]{1,64}@(?P<host>[\w.-]{1,255})(?:[: ]\S{0,200}?)?\]? ?[$#]"  # user@host:~$, [user@host ~]#
    r"|[\w.-]{0,64}:?[~/][\w.~/-]{0,200} ?[$#]|(?:ba|z)?sh-\d[\d.]{0,8}[$#]|[$#]|PS .{1,80}>) (?=\S)"
)
"""A shell that waits for the next command: the output before has ended."""


class Signs:
    """Finds the kind that a line begins."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._kinds = {f"k{number}": kind for number, kind in enumerate(kinds)}
        signs = "|".join(f"(?P<{group}>{kind.sign})" for group, kind in self._kinds.items())
        self._pattern = re.compile(signs) if kinds else None

        self._commands = [(re.compile(kind.command), kind) for kind in kinds if kind.command]
        self._silent = [(re.compile(kind.silent), kind) for kind in kinds if kind.silent]

    def by_command(self, command: str) -> Kind | None:
        """Return the kind of what a command prints; None: the lines show it by themselves."""
        if not command:
            return None
        return next((kind for pattern, kind in self._commands if pattern.match(command)), None)

    def silent(self, command: str) -> Kind | None:
        """Return the kind of a command that may print nothing; None: its silence says nothing."""
        return next((kind for pattern, kind in self._silent if pattern.match(command)), None)

    def kind_of(self, line: str) -> Kind | None:
        """Return the kind whose sign a line has; None: it has none."""
        match = None if self._pattern is None else self._pattern.match(line)
        return None if match is None or match.lastgroup is None else self._kinds[match.lastgroup]
