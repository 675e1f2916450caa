"""A stand-in for ssh and many nodes, which costs milliseconds a node: a shell that prints saved answers.

The Python of the other stand-in would take longer to start than gdrtop takes for a node.
"""

import shlex
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from probes.fleet.summary import NodeSummary
from probes.host.remote.collector import GREETING
from probes.host.remote.fan_out import FanOut, FanOutOptions
from probes.host.remote.remote_host import Answers, Missing
from probes.host.remote.transport import Target, pack
from tui.commands.fleet.check import judge_answers

# A node's own directory, else that of the plain ones. An answer is found by the length of the line that asks.
# Odd nodes are slow: a plain one goes first, as when the answers were saved.
NODE = """\
cd {directory} || exit
if [ -d "$1" ]; then cd "$1"; sleep {seconds}; else cd plain; fi
size=${{4##*read(}}
head -c "${{size%%)*}}" > /dev/null
cat greeting
while asked=$(head -n 1 | wc -c) && [ "$asked" -gt 0 ]; do cat "$asked" || exit; done
"""


class _Saving:
    """Judges a node, and saves its answers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, answers: Answers) -> NodeSummary | Missing:
        node = self.directory / answers.host
        node.mkdir(exist_ok=True)
        for asked, line in zip(answers.asked, answers.lines, strict=True):
            (node / str(len(asked))).write_bytes(line + b"\n")
        return judge_answers(answers)


def save_answers(directory: Path, plain: str, odd: Mapping[str, str], seconds: float = 1.0) -> str:
    """Save what simulated nodes answer; return the transport.

    All nodes but the `odd` are `plain`; the odd ones are slow, by so many seconds.
    """
    nodes = {"plain": plain, **odd}
    saving = _Saving(directory)
    with ThreadPoolExecutor(1) as executor:
        fleet = ";".join(f"{name}={simulated}" for name, simulated in {"first": plain, **nodes}.items())
        transport = (sys.executable, "-m", "tests.support.stand_in", fleet, "{host}")
        first, others = (
            FanOut(
                [Target(name, transport) for name in names],
                saving,
                executor,
                lambda *_: None,
                FanOutOptions(8, 600.0),
            )
            for names in (["first"], list(nodes))
        )
        (directory / "plain").mkdir()
        (directory / "first").symlink_to("plain")
        for fan_out in (first, others):
            others._lists = first._lists  # a plain node says what the others are asked
            _, failures = fan_out.run()
            assert not failures, failures
    for name, simulated in nodes.items():
        greeting = pack({"kind": simulated.partition("+")[0], "is_root": True}).decode()
        (directory / name / "greeting").write_text(f"\n{GREETING}\n{greeting}")
    program = directory / "node"
    program.write_text(NODE.format(directory=shlex.quote(str(directory)), seconds=seconds))
    return f"sh {program} {{host}}"
