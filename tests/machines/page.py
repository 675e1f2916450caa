"""The page of the manual about real machines, tui/manual/machines.md."""

from __future__ import annotations

from probes.base.text import plural
from tests.machines.compared import Compared
from tests.machines.table import SECTIONS, Comparison
from tests.manual_output import FOLDER

PATH = FOLDER / "machines.md"
_MOST_NAMED = 4  # differences of one row

_BEFORE = """\
# Real machines

Other people published outputs, logs and copies of `/sys` of their machines. What gdrtop reads there was
compared with what another program says of the same machine, or with the text. Find hardware like yours
in the tables.

Proven by these comparisons:

- The path words are NCCL's: on two machines by NCCL's own log, on the others by a second program that
  follows NCCL's source code.
- nvidia-smi's words were compared on one real tree, and half of them are unknown there. A simulated node
  has the words of one real machine.
- What gdrtop reads in outputs, logs and files is what they say: links, ACS, GPUs, ports, channels, results
  and Xids.

Not proven by them:

- gdrtop did not run on these machines. It read their texts and copies of their files, and saw none of
  their jobs run.
- Nothing was measured or changed there, so no row shows that a fix makes a job faster.
- Where a row has unknown values, the text does not show enough, and gdrtop says that it does not know
  them.

A row says how many values agree, and names those that differ. `python -m tests.machines` compares again;
the public repository of each text is in tests/machines/table.py.
"""
_AFTER = """\
## A real kernel

`make test-vm` boots a virtual node with a real Linux kernel, software RDMA, and stand-ins for the
drivers of GPUs and NICs. What gdrtop shows and changes there is compared with lspci, lsmod, rdma,
ibv_devinfo, modprobe and `/proc`. It does not show how NVIDIA's driver or a NIC's driver behaves.

## Only simulated

No output of a real machine of these kinds was compared. Their simulated nodes follow documents and
source code, which the node's file in probes/simulation/nodes names.

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
    "gcp-a4": "B200 on Google Cloud, gIB",
    "slingshot": "HPE Slingshot (cxi), GH200 nodes of four GPUs",
    "azure-nd-h100": "Azure ND H100 v5",
    "bare-roce": "RoCE over bonds on H200, but for the one bond above",
    "pcie-l40s": "L40S servers of two sockets and their NICs",
    "cloud-vm": "virtual machines without NUMA nodes",
}
# Simulated nodes for whose hardware a row above stands, at least in part.
SHOWN = {
    "hgx-h100": "paths, registers, GPUs, ports, NCCL and perftest",
    "dgx-a100": "GPUs, NVLinks and nccl-tests; paths of A100 machines of clouds, not of a DGX",
    "gb200": "the GPUs; paths, C2C and NICs are only simulated",
    "oci-h100": "paths, nccl-tests",
    "dgx-spark": "perftest with host memory; all else is only simulated",
}
_LAST = """\
Only ConnectX, EFA and Omni-Path devices have a row. What gdrtop says of other NICs, such as Broadcom's
`bnxt_re`, Intel's `irdma`, AMD Pensando's `ionic` and Microsoft's `mana_ib`, is from documents and
source code, too.

Of the hardware of the other simulated nodes, the tables show:

"""


def text(results: dict[Comparison, Compared]) -> str:
    """Return the page with these results."""
    lines = [_BEFORE]
    for title, rows in SECTIONS.items():
        lines += [
            f"## {title}\n",
            "| machine: GPUs, NICs | result, of what compared with what |",
            "|---|---|",
        ]
        lines += [row(comparison, results[comparison]) for comparison in rows]
        lines.append("")
    lines.append(_AFTER.rstrip("\n"))
    lines += [f"| `{name}` | {what} |" for name, what in ONLY_SIMULATED.items()]
    lines += ["", _LAST.rstrip("\n"), ""]
    lines += [f"- `{name}`: {what}" for name, what in SHOWN.items()]
    return "\n".join(lines) + "\n"


def row(comparison: Comparison, result: Compared) -> str:
    """Return the line of one comparison."""
    return f"| {comparison.machine}: {comparison.devices} | {shown(result)}: {comparison.truth} |"


def shown(result: Compared) -> str:
    """Return a result in words: how many agree, and what differs."""
    words = f"{result.agreed} of {plural(result.values, 'value')} agree"
    if result.unknown:
        words += f", {result.unknown} unknown"
    if result.differences:
        named = "; ".join(difference.replace("|", "/") for difference in result.differences[:_MOST_NAMED])
        words += f", {len(result.differences)} differ: {named}"
    return words
