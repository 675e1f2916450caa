"""The InfiniBand switch at the other end of a simulated node's cables, as smpquery and perfquery show it."""

from __future__ import annotations

from probes.base.unknown import Maybe
from probes.host.answers import CommandOutput
from probes.simulation.node.model.tree import PlacedNic, Tree

_GUID, _LID, _FIRST_PORT = "0x51a01a7e0000c0de", 7, 11
_SYMBOL_ERRORS = 1532
_NO_ADDRESS = "iberror: failed: Failed to open port"


def add_switch(tree: Tree, bad: PlacedNic) -> None:
    """Add the answers of infiniband-diags; the port of one NIC has symbol errors."""
    ports = {nic.name: _FIRST_PORT + number for number, nic in enumerate(tree.nics)}

    def answer(argv: tuple[str, ...], seconds: float) -> Maybe[CommandOutput] | str:
        device = argv[argv.index("-C") + 1] if "-C" in argv[:-1] else ""
        if device not in ports:
            return CommandOutput(argv, 255, "", f"{argv[0]}: {_NO_ADDRESS}")
        if argv[0] == "perfquery":
            errors = _SYMBOL_ERRORS if device == bad.name else 0
            return _shown(SymbolErrorCounter=errors, LinkDownedCounter=0, PortRcvErrors=0, PortXmitWait=0)
        if "portinfo" in argv:
            return _shown(Lid=_LID)
        return _shown(NodeType="Switch", SystemGuid=_GUID, Guid=_GUID, LocalPort=ports[device])

    for name in ("smpquery", "perfquery"):
        tree.commands[name] = answer
        tree.add(f"/usr/sbin/{name}", "")


def _shown(**fields: object) -> str:
    """Return fields as libibmad prints them: the name, dots up to column 33, the value."""
    return "".join(f"{f'{name}:':.<33}{value}\n" for name, value in fields.items())
