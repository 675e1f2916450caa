"""gdrtop of this machine reads the guest over ssh, and judges it as gdrtop in the guest does."""

import json
from typing import Any

import pytest

from tests.node_vm.guest import PATIENCE, TIMED_OUT, Guest
from tui.cli import main

ADDRESS = "127.0.0.1"


def ask(guest: Guest, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What gdrtop here says of the guest; asked again where a slow guest left a question unanswered."""
    guest.answers()  # the connection that is shared, else gdrtop's would be
    for _ in range(PATIENCE):
        main([*words, "--json", "--over", guest.over])
        said = capsys.readouterr()
        assert said.err == ""
        if TIMED_OUT not in said.out:
            break
    return json.loads(said.out)


def findings(document: Any) -> dict[str, str]:
    """The severity of each finding."""
    return {finding["id"]: finding["severity"] for finding in document["findings"]}


def test_a_guest_is_judged_from_here_as_in_it(node: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    node.shell("modprobe mlx5_ib; modprobe nvidia_peermem")
    own = node.json("check")
    seen = ask(node, capsys, "check", "--host", ADDRESS)
    assert seen["verdict"] == own["verdict"]
    assert findings(seen) == findings(own)
    fleet = ask(node, capsys, "fleet", "check", "-w", ADDRESS)
    assert fleet["unanswered"] == []
    (group,) = fleet["groups"]
    assert group["nodes"] == [ADDRESS]
    assert group["verdict"] == own["verdict"]
