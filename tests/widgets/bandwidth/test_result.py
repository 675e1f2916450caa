"""What was measured, in a line beside the path."""

from dataclasses import replace

from probes.bandwidth.model.result import Result
from tests.support.sample_results import MORNING, result
from widgets.bandwidth.result import draw_last_result
from widgets.base.lines import plain


def told(shown: Result) -> str:
    return " ".join(plain(line) for line in draw_last_result(shown, MORNING + 7200, 110))


def test_it_says_how_much_by_which_memory_and_when() -> None:
    assert told(result(186.0)) == "✓ measured 186 of 200 Gb/s, 93 % · DMA-BUF · 2 h ago"


def test_another_tool_and_a_peer_are_named() -> None:
    assert "DMA-BUF · ib_read_bw · 2 h ago" in told(result(tool="ib_read_bw"))
    client = result(setup="client")
    assert "DMA-BUF · with node-b · 2 h ago" in told(
        replace(client, pair=replace(client.pair, peer="node-b"))
    )
    assert "DMA-BUF · with a peer · 2 h ago" in told(result(setup="server"))
