"""Processes on another node print while they run, and end with their connection, whatever dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.host.remote import collector
from probes.host.remote.transport import GARBLED, plain_source
from tests.support.process_families import FAMILIES, LONG, ROOT, gone, to_the_end, until_line, wait_for
from tests.tui.bandwidth.pairs.loopback import Start, loopback, python, start_family
from tui.bandwidth import supervisor
from tui.bandwidth.pairs import node_server, remote_processes
from tui.bandwidth.pairs.pairs_runner import UNCONFIRMED
from tui.bandwidth.pairs.remote_processes import RemoteNodeProcesses
from tui.bandwidth.processes import ProcessExit

GREETING = f"echo; echo {node_server.GREETING}"
GDRTOP = """
import sys
sys.path.insert(0, {root!r})
from tests.tui.bandwidth.pairs.loopback import loopback, start_family
process, pids = start_family(loopback(), {family!r})
print(*pids, flush=True)
process.lines(1000.0)
"""


@pytest.fixture
def node() -> Iterator[Start]:
    opened: list[RemoteNodeProcesses] = []

    def open_node(script: str = 'shift; exec "$@"') -> RemoteNodeProcesses:
        opened.append(loopback(script))
        return opened[-1]

    yield open_node
    for processes in opened:
        processes.close()


def servers() -> list[psutil.Process]:
    """The programs on the nodes; a child that has ended and is not waited for yet has no command line."""
    return [
        child
        for child in psutil.process_iter(["ppid", "cmdline"])
        if child.info["ppid"] == os.getpid() and "zlib" in " ".join(child.info["cmdline"] or ())
    ]


def test_processes_of_a_node_share_a_connection_and_print_while_they_run(node: Start, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    processes = node()
    assert servers() == []
    wait = f"while [ ! -e {go_on} ]; do sleep 0.02; done"
    first = processes.start(["sh", "-c", f"echo one; {wait}; echo two >&2; exit 3"], LONG)
    second = processes.start(["sh", "-c", "printf '\\033[31mred\\033[2J\\377'; kill -9 $$"], LONG)
    assert until_line(first, "one") == ["one"]
    lines, ended = to_the_end(second)
    assert lines == ["red�"]
    assert (ended.exit_status, ended.why) == (-9, "killed by signal 9")
    assert first.ended is None
    assert len(servers()) == 1
    go_on.touch()
    lines, ended = to_the_end(first)
    assert lines == ["two"]
    assert (ended.exit_status, ended.why) == (3, "")
    assert ended.cpu_seconds is not None
    processes.close()
    assert servers() == []


def test_a_program_has_a_terminal_and_a_clean_environment(
    node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    code = (
        "import os, sys\n"
        "print(os.isatty(1), repr(sys.stdin.read()), os.getcwd(), os.getsid(0) == os.getpid())\n"
        "print(os.listdir('/proc/self/fd'))\nprint(*os.environ)"
    )
    lines, _ = to_the_end(node().start(python(code), LONG))
    assert lines[:2] == ["True '' / True", "['0', '1', '2', '3']"]
    of_shell = {"PWD", "_", "SHLVL", "OLDPWD"}
    assert set(lines[2].split()) - of_shell <= {"PATH", "LC_ALL", "TERM", *supervisor.PASSED_ON}


def test_a_program_is_found_only_on_the_trusted_path_of_the_node(node: Start) -> None:
    processes = node()
    for name, why in (("no-such", "not installed"), (sys.executable, "by name, not by path")):
        lines, ended = to_the_end(processes.start([name], LONG))
        assert lines == []
        assert ended.exit_status is None
        assert why in ended.why


def test_the_node_limits_the_time(node: Start) -> None:
    _, ended = to_the_end(node().start(["sleep", "1000"], 0.3))
    assert ended.exit_status == -signal.SIGTERM
    assert ended.why == "stopped after its time limit of 0.3 s"


@pytest.mark.parametrize("family", ["deaf()", "child(group, deaf)"])
def test_an_end_leaves_nothing(node: Start, family: str) -> None:
    process, pids = start_family(node(), family)
    process.end()
    process.end()
    assert all(map(gone, pids))
    assert to_the_end(process)[1].why == "canceled"


def test_a_program_that_prints_a_lot_fills_no_memory(node: Start, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    processes = node()
    code = f"for number in range(5000): print(number)\nopen({str(printed)!r}, 'w')"
    process = processes.start(python(code), LONG)
    waits = processes.start(["sh", "-c", f"while [ ! -e {printed} ]; do sleep 0.02; done"], LONG)
    to_the_end(waits)
    process.end()
    lines, _ = to_the_end(process)
    assert lines == [*map(str, range(2000)), "… and 3000 more lines"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 1", "sh closed the connection"),
        ("echo 'Permission denied (publickey).' >&2; exit 255", "make `ssh gpu1 true` work"),
        ('PATH=/nowhere; shift; eval "$3"', "no Python 3.6 or newer"),
        ("exec >&-; exec sleep 1000", "sh closed the connection"),
        ("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", "something else"),
    ],
)
def test_a_node_that_cannot_be_reached_says_why(node: Start, script: str, why: str) -> None:
    process = node(script).start(["ib_write_bw"], LONG)
    lines, ended = to_the_end(process)
    process.end()
    assert lines == []
    assert ended.exit_status is None
    assert ended.why.startswith("not started on gpu1: ")
    assert why in ended.why


def test_a_transport_that_cannot_be_run_says_so() -> None:
    processes = RemoteNodeProcesses(remote_processes.Target("gpu1", ("/no/such/ssh", "{host}")))
    ended = processes.start(["ib_write_bw"], LONG).ended
    assert ended == ProcessExit(None, 0.0, "gpu1: cannot run /no/such/ssh: No such file or directory")
    processes.close()


def test_a_silent_node_is_not_waited_for(node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_processes, "CONNECT_SECONDS", 0.2)
    process = node("exec sleep 1000").start(["ib_write_bw"], LONG)
    assert process.lines(0.0) == []
    assert to_the_end(process)[1].why == "not started on gpu1: it does not answer"


@pytest.mark.parametrize(
    "report", ["{", "[]", "{}", '{"process": 1}', '{"process": 1, "ended": [0, "", 1, 2]}', "[" * 100_000]
)
def test_a_garbled_report_ends_the_connection(node: Start, report: str, tmp_path: Path) -> None:
    (tmp_path / "report").write_text(f"{report}\n")
    process = node(f"{GREETING}; cat {tmp_path}/report; exec sleep 1000").start(["ib_write_bw"], LONG)
    ended = to_the_end(process)[1]
    assert f"lost the connection to gpu1 ({GARBLED}): {UNCONFIRMED}; it ends after 120 s" in ended.why


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.binary(), st.sampled_from([b'{"process": 1', b'"ended": [0, 1.5, "", null]', b"}", b"\n"])
        )
    )
)
def test_whatever_a_node_prints_the_process_ends(tmp_path: Path, printed: list[bytes]) -> None:
    (tmp_path / "printed").write_bytes(b"".join(printed))
    processes = loopback(f"{GREETING}; cat {tmp_path}/printed")
    assert to_the_end(processes.start(["ib_write_bw"], LONG))[1].why or printed
    processes.close()


@pytest.mark.slow
def test_a_lost_connection_ends_the_test_there_and_the_next_start_connects_again(node: Start) -> None:
    processes = node()
    process, pids = start_family(processes, "child(group, deaf)")
    (server,) = servers()
    server.kill()
    _, ended = to_the_end(process)
    assert ended.exit_status is None
    assert ended.why.startswith(
        f"lost the connection to gpu1 (sh closed the connection): {UNCONFIRMED}; it ends"
    )
    wait_for(lambda: all(map(gone, pids)))
    assert to_the_end(processes.start(["echo", "here"], LONG))[0] == ["here"]


def test_a_node_that_hangs_does_not_hang_the_end(node: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_processes, "OVERDUE_SECONDS", 0.3)
    # As with ssh, what runs on the node has a session of its own, and survives its transport.
    process, pids = start_family(node('shift; setsid "$@"; exit'), "")
    (server,) = [each for each in psutil.Process().children(recursive=True) if each.ppid() != os.getpid()][:1]
    server.suspend()
    assert process.lines(0.0) == []
    process.end()
    assert f"(it does not answer): {UNCONFIRMED}" in to_the_end(process)[1].why
    assert not any(map(gone, pids))
    server.resume()
    wait_for(lambda: all(map(gone, pids)))


def test_a_dead_supervisor_leaves_nothing(node: Start) -> None:
    process, pids = start_family(node(), "child(group, deaf)")
    (server,) = servers()
    (own_supervisor,) = server.children()
    own_supervisor.kill()
    assert to_the_end(process)[1].why == "killed with its supervisor (status -9)"
    wait_for(lambda: all(map(gone, pids)))


def _killed(family: str) -> None:
    code = GDRTOP.format(root=str(ROOT), family=family)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as gdrtop:
        assert gdrtop.stdout is not None
        pids = [int(pid) for pid in gdrtop.stdout.readline().split()]
        below = [child.pid for child in psutil.Process(gdrtop.pid).children(recursive=True)]
        assert pids
        assert not any(map(gone, pids))
        gdrtop.kill()
    wait_for(lambda: all(map(gone, [*pids, *below])))


@pytest.mark.slow
def test_nothing_is_left_on_a_node_if_gdrtop_is_killed() -> None:
    _killed("child(group, deaf)")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_nothing_of_any_family_is_left_on_a_node_if_gdrtop_is_killed(family: str) -> None:
    _killed(family)


def test_nothing_is_left_on_a_node_that_kills_the_program_there(node: Start) -> None:
    process, pids = start_family(node(), "child(os.setsid)")
    (server,) = servers()
    family = server.children(recursive=True)
    server.kill()
    wait_for(lambda: all(map(gone, [*pids, *(child.pid for child in family)])))
    to_the_end(process)


@pytest.mark.parametrize("module", [collector, supervisor, node_server])
def test_the_program_needs_python_3_6_and_no_newer(module: ModuleType) -> None:
    vermin = pytest.importorskip("vermin", reason="tells which Python a program needs")
    assert vermin.detect(plain_source(Path(str(module.__file__)))) == [None, (3, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9", "3.13"])
def test_the_program_runs_with_old_and_new_pythons(node: Start, version: str) -> None:
    found = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin"))
    if not found:
        pytest.skip(f"Python {version} is not installed")
    processes = node(f'shift; PATH={found[0]}:$PATH; export PATH; exec "$@"')
    process, pids = start_family(processes, "child(group, deaf)")
    process.end()
    assert all(map(gone, pids))
    assert to_the_end(processes.start(["sh", "-c", "exit 4"], LONG))[1].exit_status == 4
