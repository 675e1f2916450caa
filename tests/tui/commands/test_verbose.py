"""-v: which sources were read, how long each took, and which failed, on stderr."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.local import LocalHost
from probes.host.probe_thread import ReadSource, begin_log, end_log, start_probe
from tui.cli import main
from widgets.base.lines import plain
from widgets.node.sources import draw_sources


@pytest.fixture
def logged() -> Iterator[None]:
    begin_log()
    yield
    end_log()


@frozen
class Facts:
    speed: Maybe[int]
    names: dict[str, tuple[Maybe[str], ...]]


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each source: seconds, reads, from, outcome."""
    return {name: cells for name, *cells in (re.split(r"  +", row) for row in text.splitlines()) if cells}


def drawn(answer: object, *questions: str) -> str:
    source = ReadSource(Origin(Source.REMOTE, "gpu01"), "pci", 0.25, answer, questions)
    return plain(draw_sources([source])[-1])


def test_the_sources_stand_on_stderr_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("proc/driver", "sys/class"):
        (tmp_path / name).mkdir(parents=True)
    tree = ("--root", str(tmp_path))
    status = main(["check", *tree])
    without = capsys.readouterr()
    assert main(["check", *tree, "-v"]) == main(["--verbose", "check", *tree]) == status
    shown = capsys.readouterr()
    assert without.err == ""
    assert shown.out == without.out * 2
    first, *_ = shown.err.splitlines()
    assert first == f"Sources read on {tmp_path}, the slowest first"
    found = rows(shown.err)
    assert found["pci"][2:] == ["/sys, /sys/bus/pci", "– not there (/sys/bus/pci/devices)"]
    assert found["memlock"][3] == "✗ not recorded: this tree has no /etc (/etc)"
    assert all(re.fullmatch(r"\d+\.\d{3}", cells[0]) for cells in list(found.values())[1:])
    assert {"counters and GPU state", "running jobs"} <= found.keys()


def test_values_that_are_unknown_within_an_answer_are_counted_by_reason() -> None:
    root, absent = Unknown(Reason.NEEDS_ROOT), Unknown(Reason.NOT_THERE)
    assert drawn(Facts(7, {"a": ("b", absent)})).endswith("✓ ok")
    assert drawn(Facts(root, {"a": (root, absent)})).endswith("▲ 2 values unknown (needs root)")
    mixed = Facts(Unknown(Reason.TIMED_OUT), {"a": (root, root)})
    assert drawn(mixed).endswith("▲ 3 values unknown (needs root: 2, timed out: 1)")


def test_places_are_counted_and_named_without_processes_and_the_node() -> None:
    asked = [f"gpu01: /proc/{pid}/fd/3" for pid in (7, 8)] + ["gpu01: /sys/bus/pci/devices/x", "dmesg", "x"]
    assert drawn(None, *asked) == "pci       0.250      5  /proc/*/fd, /sys/bus/pci, 2 more  ✓ ok"


def test_a_source_that_hangs_is_timed_out_even_if_its_answer_comes_later(logged: None) -> None:
    host, released = LocalHost(), threading.Event()
    stuck = start_probe(host, "stuck", lambda: released.wait(30.0))
    assert isinstance(stuck.answer(0.01), Unknown)
    released.set()
    assert stuck.answer(20.0) is True
    (source,) = end_log()
    assert isinstance(source.answer, Unknown)
    assert source.answer.reason is Reason.TIMED_OUT


def test_without_the_option_nothing_is_kept() -> None:
    assert start_probe(LocalHost(), "kept", lambda: 7).answer(5.0) == 7
    assert end_log() == ()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(("fleet", "check", "--demo", "-v"), "gdrtop check --verbose --host NODE"), (("-v",), "--version")],
)
def test_what_has_no_single_node_is_refused(
    arguments: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    shown = capsys.readouterr()
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert hint in shown.err
