"""What dcb of iproute2 or OFED's mlnx_qos shows of the netdevs of a simulated node."""

from __future__ import annotations

import json
from collections.abc import Sequence

from probes.base.unknown import Maybe
from probes.host.answers import CommandOutput
from probes.simulation.node.model.description import QosDescription
from probes.simulation.node.model.tree import Tree

_PRIORITIES, _DSCPS = 8, 64
DCB, MLNX_QOS = "dcb", "mlnx_qos"


def add_qos(tree: Tree) -> None:
    """Add the tool that the description names; all its NICs answer alike."""
    described = next((nic.qos for nic in tree.description.nic.values() if nic.qos is not None), None)
    if described is not None:
        set_qos(tree, described)


def set_qos(tree: Tree, qos: QosDescription) -> None:
    """Let the tool show these settings."""

    def dcb(argv: Sequence[str], seconds: float) -> str:
        if "pfc" in argv:
            enabled = [number in qos.pfc for number in range(_PRIORITIES)]
            shown: dict[str, object] = {"pfc_cap": 8, "macsec_bypass": False, "delay": 0, "prio_pfc": enabled}
        else:
            shown = {"dscp_prio": [list(pair) for pair in _mapping(qos)]} if qos.trusts_dscp else {}
        return json.dumps(shown)

    def mlnx_qos(argv: Sequence[str], seconds: float) -> Maybe[str | CommandOutput]:
        return _text(qos)

    tree.commands[qos.tool] = dcb if qos.tool == DCB else mlnx_qos


def _mapping(qos: QosDescription) -> list[tuple[int, int]]:
    """Return (DSCP, priority): by default the upper three bits of the DSCP."""
    return [(dscp, qos.priorities.get(dscp, dscp >> 3)) for dscp in range(_DSCPS)]


def _text(qos: QosDescription) -> str:
    lines = ["DCBX mode: OS controlled", f"Priority trust state: {'dscp' if qos.trusts_dscp else 'pcp'}"]
    if qos.trusts_dscp:
        lines.append("dscp2prio mapping:")
        for number in range(_PRIORITIES):
            listed = "".join(f"{dscp:02d}," for dscp, priority in _mapping(qos)[::-1] if priority == number)
            lines += [f"\tprio:{number} dscp:{listed}"] if listed else []
    enabled = "   ".join("1" if number in qos.pfc else "0" for number in range(_PRIORITIES))
    lines += [
        "Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,total_size=1027728",
        "Cable len: 7",
        "PFC configuration:",
        "\tpriority    0   1   2   3   4   5   6   7",
        f"\tenabled     {enabled}   ",
        *(f"tc: {tc} ratelimit: unlimited, tsa: vendor\n\t priority:  {tc}" for tc in range(_PRIORITIES)),
    ]
    return "\n".join(lines) + "\n"
