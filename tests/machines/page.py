"""The page of the manual about real machines: tui/manual/machines.md, which this writes and the tests compare."""

from __future__ import annotations

from probes.base.text import plural
from tests.machines.compared import Compared
from tests.machines.table import SECTIONS, Comparison
from tests.manual_output import FOLDER

PATH = FOLDER / "machines.md"
_MOST_NAMED = 4  # differences of one row

_BEFORE = """\
# Real machines

Outputs, logs and copies of `/sys` that other people published, with what gdrtop reads there compared with what another
program says of the same machine, or with the text itself. Find hardware like yours in the tables.

Proven by these comparisons:

- Path words (PIX, PXB, PHB, NODE, SYS) of each GPU and NIC are NCCL's and nvidia-smi's, on machines of the kinds below.
- What gdrtop reads in outputs and logs is what stands in them: link, ACS, GPUs, ports, channels, results, Xids.

Not proven by them:

- gdrtop has not run on these machines. Only their texts were here, so a live reading of their files is not compared.
- No comparison measures a bandwidth. Nothing here shows that a fix of gdrtop's makes a job faster on these machines.
- Where a row has unknown values, gdrtop says that it does not know them, because the text does not show them.

Each row names how many values agree. A difference would be named there. `python -m tests.machines` compares again.
"""
_AFTER = """\
## A real kernel

`make test-vm` boots virtual nodes with the kernels of Debian 12 and 13, GPUs and NICs that QEMU and small modules stand for, and
software RDMA. It compares the PCI tree, memory regions, queue pairs, module changes, processes and live rates with what
was set up. It proves that gdrtop reads and changes a real kernel, not how the drivers of NVIDIA and the NICs behave.

## Only simulated

No output of a real machine of these kinds was compared. Their simulated nodes follow documents and source code that
the node's file in probes/simulation/nodes names.

| simulated node | hardware that no comparison shows |
|---|---|
"""
# Each simulated node whose hardware no row above has, and what that is.
ONLY_SIMULATED = {
    "vera-rubin": "Vera Rubin GPUs and CPUs, ConnectX-9",
    "gb300": "GB300, ConnectX-8 with Data Direct and its switch",
    "hgx-b300": "B300, ConnectX-8 with its switch",
    "hgx-b200": "B200 behind NVSwitches that NVLSM manages",
    "aws-p5": "EFA on P5: 32 devices, efa_nv_peermem",
    "aws-p6-b300": "EFA on P6",
    "gcp-a4": "Google Cloud A4, gIB",
    "slingshot": "HPE Slingshot (cxi), GH200 nodes of four GPUs",
    "azure-nd-h100": "Azure ND H100 v5",
    "bare-roce": "RoCE over bonds on H200, but for the one bond above",
    "pcie-l40s": "L40S in a server of two sockets",
    "cloud-vm": "virtual machines without NUMA nodes",
}
# Simulated nodes for whose hardware a row above stands, at least in part.
SHOWN = {
    "hgx-h100": "paths, registers, GPUs, ports, NCCL and perftest",
    "dgx-a100": "GPUs, NVLinks and nccl-tests; paths of A100 machines of clouds, not of a DGX",
    "gb200": "the GPUs; paths, C2C and NICs are only simulated",
    "oci-h100": "paths, nccl-tests",
    "dgx-spark": "perftest with host memory; the node itself is only simulated",
}
_LAST = """\
NICs with other drivers than mlx5, EFA and hfi1 (Broadcom `bnxt_re`, Intel `irdma`, AMD Pensando `ionic`, Microsoft
`mana_ib`), Spectrum-X and AMD GPUs have no row, so what gdrtop says of them is from documents and source code, too.

Of other simulated nodes, the tables show:

"""


def text(results: dict[Comparison, Compared]) -> str:
    """Return the page with these results."""
    lines = [_BEFORE]
    for title, rows in SECTIONS.items():
        lines += [f"## {title}\n", "| machine | GPUs, NICs | compared | result |", "|---|---|---|---|"]
        lines += [row(comparison, results[comparison]) for comparison in rows]
        lines.append("")
    lines.append(_AFTER.rstrip("\n"))
    lines += [f"| `{name}` | {what} |" for name, what in ONLY_SIMULATED.items()]
    lines += ["", _LAST.rstrip("\n"), ""]
    lines += [f"- `{name}`: {what}" for name, what in SHOWN.items()]
    lines += ["", "## Sources\n", "All are public repositories on GitHub:\n"]
    sources = {name for rows in SECTIONS.values() for each in rows for name in each.repositories}
    lines += [f"- {name}" for name in sorted(sources, key=str.casefold)]
    return "\n".join(lines) + "\n"


def row(comparison: Comparison, result: Compared) -> str:
    """Return the line of one comparison."""
    return f"| {comparison.machine} | {comparison.devices} | {comparison.truth} | {shown(result)} |"


def shown(result: Compared) -> str:
    """Return a result in words: how many agree, and what differs."""
    words = f"{result.agreed} of {plural(result.values, 'value')} agree"
    if result.unknown:
        words += f", {result.unknown} unknown"
    if result.differences:
        named = "; ".join(difference.replace("|", "/") for difference in result.differences[:_MOST_NAMED])
        words += f", {len(result.differences)} differ: {named}"
    return words
