"""Many nodes at once: how each of them ends, and that nothing is left of them."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from probes.host.remote import fan_out, transport
from probes.host.remote.collector import GREETING
from probes.host.remote.connection import Connection
from probes.host.remote.fan_out import FanOut, FanOutOptions
from probes.host.remote.remote_host import Answers, BatchHost, Missing, questions_of
from probes.host.remote.transport import REFUSED, ConnectionFailed, Target, pack

# A node that answers every question with its own name.
_NODE = f"""
import base64, json, re, sys, time, zlib
name, kind = sys.argv[1:3]
source = sys.stdin.buffer.read(int(re.search(r"read\\(([0-9]+)\\)", sys.argv[-1])[1]))
def send(message):
    print(base64.b64encode(zlib.compress(json.dumps(message).encode())).decode(), flush=True)
print("Welcome\\n{GREETING}")
send({{"kind": kind, "is_root": True}})
for line in sys.stdin:
    asked = json.loads(zlib.decompress(base64.b64decode(line)))["ask"]
    if name.startswith("hung"):
        sys.stdin.read()
    message = {{"answers": [{{"value": len(name)}}] * len(asked), "monotonic": 1.0, "wall": 2.0}}
    send(message)
    if name.startswith("eager"):
        send(message)
    if name.startswith("leaving") and asked:
        sys.exit()
"""
_SCRIPTS = {
    "exits": "exit 1",
    "refuses": "echo 'x: Permission denied (publickey)' >&2; exit 255",
    "silent": "cat >/dev/null; :",
    "floods": "exec cat /dev/zero",
    "nologin": "echo; printf 'This account is currently not available.'; exit 1",
    "pours": f"printf '\\n{GREETING}\\n'; exec cat /dev/zero",
    "noisy": "yes; :",
    "loud": "yes >&2; :",
    "garbage": f"printf '\\n{GREETING}\\nno message\\n'; cat >/dev/null",
    "halfway": f"printf '\\n{GREETING}\\n{pack({'kind': 'x'}).decode().strip()[:20]}'",
}


def target(name: str, kind: str = "kind") -> Target:
    """A node by its name: what it does before "-" in it."""
    script = _SCRIPTS.get(re.split(r"[-@]", name)[0])
    if script is not None:
        return Target(name, ("sh", "-c", script, "sh", "{host}"))
    return Target(name, (sys.executable, "-S", "-c", _NODE, "{host}", kind))


def judge(answers: Answers) -> int | Missing:
    """Ask for the sizes of two files, the second after the first."""
    try:
        host = BatchHost(answers)
    except ConnectionFailed as error:
        return Missing([], str(error))
    found = [host.size("/first")]
    if not host.missing:
        found.append(host.size("/second"))
    if answers.host.startswith("endless"):
        host.size(f"/{len(answers.lines)}")
    if answers.host.startswith("greedy"):
        return Missing([("size", "/")] * 100)
    if answers.host.startswith("killing"):
        os.kill(os.getpid(), signal.SIGKILL)
    if answers.host.startswith("raising"):
        raise RuntimeError("no \x1b[31mjudgment")
    return Missing(list(host.missing)) if host.missing else sum(map(int, found))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process and no descriptor of a node is left."""
    process = psutil.Process()
    before = {child.pid for child in process.children()}
    yield
    assert {child.pid for child in process.children()} <= before


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def run(
    executor: Executor,
    *names: str,
    seconds: float = 20.0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    targets: tuple[Target, ...] = (),
) -> tuple[dict[str, int], dict[str, str]]:
    """What was concluded of these nodes, and why others failed."""
    nodes = (*map(target, names), *targets)
    return FanOut(nodes, judge, executor, on_progress, FanOutOptions(64, seconds)).run()


@pytest.mark.slow
def test_each_node_ends_with_a_result_or_a_sentence(
    monkeypatch: pytest.MonkeyPatch, threads: Executor
) -> None:
    monkeypatch.setattr(transport, "MOST_LINE_BYTES", 1 << 20)
    names = ("good-1", "user@good", "exits", "refuses", "floods", "noisy", "loud", "garbage", "halfway")
    names = (*names, "nologin", "pours")
    progress: list[tuple[int, int]] = []
    missing = Target("unreached", ("/missing/ssh", "{host}"))
    found, failures = run(
        threads, *names, on_progress=lambda *counts: progress.append(counts), targets=(missing,)
    )
    assert found == {"good-1": 12, "user@good": 18}
    flood = "it prints something else than gdrtop's answers"
    assert failures == {
        "exits": "sh closed the connection",
        "refuses": "it accepts no key of yours; make `ssh refuses true` work without a password",
        "floods": flood,
        "noisy": flood,
        "loud": flood,
        "garbage": "its answer is garbled",
        "halfway": "sh closed the connection",
        "nologin": "sh closed the connection; the node printed: This account is currently not available.",
        "pours": "it sends more than gdrtop takes from a node",
        "unreached": "cannot run /missing/ssh: No such file or directory",
    }
    assert progress == [(done, 12) for done in range(1, 13)]


def test_no_node_is_no_work(threads: Executor) -> None:
    assert run(threads) == ({}, {})


@pytest.mark.slow
def test_a_silent_node_is_given_up(threads: Executor) -> None:
    found, failures = run(threads, "silent", "good", seconds=1.5)
    assert failures == {"silent": "it did not answer within 1.5 s"}
    assert found == {"good": 8}


@pytest.mark.slow
def test_the_time_of_a_node_is_not_that_of_judging_it(
    monkeypatch: pytest.MonkeyPatch, threads: Executor
) -> None:
    """On a busy machine, nodes that answer at once were said not to answer."""

    real, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])

    def slowly(answers: Answers) -> int | Missing:
        ahead[0] += 15.0
        return judge(answers)

    options = FanOutOptions(64, 20.0)
    found, failures = FanOut((target("good"),), slowly, threads, lambda done, total: None, options).run()
    assert (found, failures) == ({"good": 8}, {})


@pytest.mark.slow
def test_a_first_node_that_hangs_delays_no_other(threads: Executor) -> None:
    found, failures = run(threads, "hung-1", seconds=0.5)
    assert failures == {"hung-1": "it did not answer within 0.5 s"}
    hung = [target(f"hung-{number}", "same") for number in range(2)]
    found, failures = run(
        threads, targets=(*hung, target("good-1", "same"), target("good-2", "same")), seconds=4.0
    )
    assert found == {"good-1": 12, "good-2": 12}
    assert sorted(failures) == ["hung-0", "hung-1"]


def test_equal_nodes_get_the_list_of_the_first(monkeypatch: pytest.MonkeyPatch, threads: Executor) -> None:
    rounds: list[int] = []
    exchange = Connection.exchange

    def counted(self: Connection, line: bytes, until: float) -> bytes:
        rounds.append(len(questions_of(line)))
        return exchange(self, line, until)

    monkeypatch.setattr(Connection, "exchange", counted)
    found, _ = run(threads, *(f"good-{number}" for number in range(4)))
    assert len(found) == 4
    assert rounds == [0, 1, 1, 2, 2, 2]


def test_questions_without_end_are_ended(monkeypatch: pytest.MonkeyPatch, threads: Executor) -> None:
    monkeypatch.setattr(transport, "MOST_QUESTIONS", 50)
    _, failures = run(threads, "endless", "greedy", "eager")
    assert failures == {
        "endless": "its answers change with every question",
        "greedy": "it has more files than gdrtop reads from a node",
        "eager": "its answer is garbled",
    }


class SlowExecutor(Executor):
    """Judges only after the node has gone."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1)

    def submit(self, call, /, *arguments, **options):  # type: ignore[no-untyped-def]
        answers = arguments[0]
        if len(answers.asked) < 3:
            return self._threads.submit(call, *arguments)
        late: Future[object] = Future()
        threading.Timer(0.3, lambda: late.set_result(call(*arguments))).start()
        return late


def test_a_node_that_is_judged_after_it_has_gone_counts() -> None:
    found, failures = run(SlowExecutor(), "leaving-2", "leaving-3", seconds=20.0)
    # It leaves after its first answer; what is missing then cannot be asked any more.
    assert (found, sorted(failures)) == ({}, ["leaving-2", "leaving-3"])
    found, failures = run(SlowExecutor(), "slow", seconds=0.45)
    assert found or failures == {"slow": "it did not answer within 0.45 s"}


def test_judging_that_fails_is_the_end_of_its_node_only(threads: Executor) -> None:
    found, failures = run(threads, "raising", "good")
    assert (
        failures == {"raising": "its answers could not be judged: no judgment"}
        or "no " in failures["raising"]
    )
    assert found == {"good": 8}
    assert failures["raising"].isprintable()


def test_a_judging_process_that_is_killed_ends_with_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    with ProcessPoolExecutor(1, get_context("fork")) as processes:
        processes.submit(os.getpid).result()
        found, failures = run(processes, "killing", "good-1", "good-2")
    assert "could not be judged" in failures["killing"]
    assert set(found) | set(failures) == {"killing", "good-1", "good-2"}
    assert capfd.readouterr().err == ""


def press_ctrl_c(done: int, total: int) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def lose_the_terminal(done: int, total: int) -> None:
    raise OSError


@pytest.mark.parametrize(
    ("on_progress", "error"), [(press_ctrl_c, KeyboardInterrupt), (lose_the_terminal, OSError)]
)
def test_a_reading_that_is_cut_short_leaves_nothing_and_prints_nothing(
    on_progress: Callable[[int, int], None], error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(2) as executor, pytest.raises(error):
        run(executor, *(f"good-{number}" for number in range(6)), "silent", on_progress=on_progress)
    assert capfd.readouterr().err == ""
    with ThreadPoolExecutor(2) as executor:  # and the next time it works
        assert run(executor, "good")[0] == {"good": 8}


@pytest.mark.slow
def test_a_transport_that_closes_its_output_and_stays_is_ended_with_its_children(threads: Executor) -> None:
    stays = Target("stays", ("sh", "-c", "exec >&- 2>&-; sleep 600 & wait", "{host}"))
    found, failures = run(threads, "good", targets=(stays,))
    assert found == {"good": 8}
    assert failures == {"stays": "sh closed the connection"}


@pytest.mark.slow
def test_nodes_that_refuse_while_others_log_in_are_tried_again_within_their_time(
    monkeypatch: pytest.MonkeyPatch, threads: Executor, tmp_path: Path
) -> None:
    """The stand-in for a jump host refuses each login while as many others are under way, as sshd does."""
    monkeypatch.setattr(fan_out, "_RETRY_SECONDS", 0.1)
    most = 5
    script = f"""
import os, subprocess, sys
logins = {str(tmp_path)!r}
place = os.path.join(logins, sys.argv[1])
for number in range({most}):
    try:
        os.mkdir(os.path.join(logins, str(number)))
        break
    except FileExistsError:
        pass
else:
    open(place, "a").write("refused ")
    sys.exit("kex_exchange_identification: Connection closed by remote host")
read, write = os.pipe()
node = subprocess.Popen([sys.executable, "-S", "-c", {_NODE!r}, *sys.argv[1:]], stdout=write)
os.close(write)
is_first = True
while piece := os.read(read, 65536):
    if is_first:
        os.rmdir(os.path.join(logins, str(number)))  # it has logged in
        is_first = False
    os.write(1, piece)
"""
    argv = (sys.executable, "-S", "-c", script, "{host}", "kind")
    nodes = tuple(Target(f"n{number:02}", argv) for number in range(30))
    never = Target("never", ("sh", "-c", "echo 'kex_exchange_identification: read' >&2; exit 255", "{host}"))
    assert run(threads, targets=(never,), seconds=0.5) == ({}, {"never": REFUSED})
    found, failures = run(threads, targets=nodes, seconds=60.0)
    assert not failures
    assert found.keys() == {node.host for node in nodes}
    assert any(tmp_path.iterdir())  # some were refused at first


def test_no_node_runs_what_the_files_of_another_one_name(threads: Executor) -> None:
    """A site's program is asked of the node whose file names it, and of no other node of its kind."""
    asked: dict[str, list[str]] = {}

    def judge(answers: Answers) -> int | Missing:
        host = BatchHost(answers)
        host.size("/first")
        if answers.host.startswith("site"):
            host.run_trusted((f"/{answers.host}",), 5.0, "nobody")
        asked[answers.host] = [str(question[-1]) for line in answers.asked for question in questions_of(line)]
        return Missing(list(host.missing)) if host.missing else 1

    first = FanOut([target("site-1")], judge, threads, lambda *_: None, FanOutOptions(1, 20.0))
    assert first.run()[0] == {"site-1": 1}
    first._targets = [target("site-2"), target("other")]
    first.run()
    assert asked == {"site-1": ["/first", "/site-1"], "site-2": ["/first", "/site-2"], "other": ["/first"]}
