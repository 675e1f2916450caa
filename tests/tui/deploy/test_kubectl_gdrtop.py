"""`kubectl gdrtop`: what it asks kubectl, and what it runs where, with a stand-in for kubectl."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tests.support.script_shell import SHELLCHECK

SCRIPT = ROOT / "tui/deploy/kubectl-gdrtop"
# Node gpu017 has the pods gdrtop-x7k2p and, in namespace team, trainer-0; trainer-1 has no node yet.
KUBECTL = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
with open(os.environ["LOG"], "a") as log:
    log.write(json.dumps(words) + "\\n")
text = " ".join(words)
if " exec " in f" {{text}} ":
    sys.exit(7)
if "get node gpu01" in text:
    print(words[words.index("node") + 1], end="")
elif "get node" in text and os.environ.get("NO_NODES"):
    sys.exit("Error from server (Forbidden): nodes is forbidden")
elif "get pod trainer-0" in text:
    print("team gpu017", end="")
elif "get pod trainer-1" in text:
    print("team ", end="")
elif "get pods" in text and "spec.nodeName=gpu017," in text and "=own" not in text:
    print("gdrtop-x7k2p metrics\\ngdrtop-other labels")
elif "get pod broken" in text:
    sys.exit("The connection to the server was refused")
"""
EXEC = ["exec", "--namespace=gdrtop", "--stdin", "--container=metrics", "gdrtop-x7k2p", "--", "/gdrtop/node"]


class Outcome:
    def __init__(self, done: "subprocess.CompletedProcess[str]", log: Path) -> None:
        self.status, self.out, self.error = done.returncode, done.stdout, done.stderr
        self.asked = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def run(directory: Path, *arguments: str, shell: str = "sh", **variables: str) -> Outcome:
    (directory / "kubectl").write_text(KUBECTL)
    (directory / "kubectl").chmod(0o755)
    log = directory / "log"
    log.unlink(missing_ok=True)
    environment = {"PATH": f"{directory}:{os.defpath}", "LOG": str(log), "LC_ALL": "C.UTF-8", **variables}
    done = subprocess.run(
        [shell, str(SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return Outcome(done, log)


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("gpu017",), ()),
        (("node/gpu017", "check", "--json"), ("check", "--json")),
        (("gpu017", "do", "load modules; reboot"), ("do", "load modules; reboot")),
        (("trainer-0",), ("explain", "--pod", "team/trainer-0")),
        (("-n", "team", "trainer-0"), ("explain", "--pod", "team/trainer-0")),
        (("pod/trainer-0", "explain", "--json"), ("explain", "--pod", "team/trainer-0", "--json")),
        (("trainer-0", "check"), ("check",)),
    ],
)
def test_gdrtop_runs_in_the_pod_on_the_node(
    arguments: tuple[str, ...], command: tuple[str, ...], shell: str, tmp_path: Path
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}")
    if shell == "busybox":
        (tmp_path / "ash").symlink_to(shutil.which("busybox") or "")
        shell = str(tmp_path / "ash")
    found = run(tmp_path, *arguments, shell=shell)
    assert found.asked[-1] == [*EXEC, *command], found.error
    assert found.status == 7  # that of gdrtop there


def test_options_for_kubectl_go_to_every_kubectl(tmp_path: Path) -> None:
    found = run(tmp_path, "--context=a b", "--kubeconfig", "/k f", "-n", "team", "trainer-0")
    assert len(found.asked) == 3
    assert all(words[:2] == ["--context=a b", "--kubeconfig=/k f"] for words in found.asked)
    assert "--namespace=team" in found.asked[0]


def test_a_user_who_may_not_read_nodes_asks_for_a_pod(tmp_path: Path) -> None:
    found = run(tmp_path, "trainer-0", NO_NODES="1")
    assert found.asked[-1] == [*EXEC, "explain", "--pod", "team/trainer-0"]


@pytest.mark.parametrize(
    "name",
    ["a b", "a;reboot", "$(id)", "`id`", "-x", "a/../b", "ä", "A", "a\nb", "*", "a" * 254, "", "a_b", "b-"],
)
@pytest.mark.parametrize("place", ["{}", "pod/{}", "-n={}"])
def test_names_with_odd_characters_never_reach_kubectl(name: str, place: str, tmp_path: Path) -> None:
    arguments = ("-n", name, "trainer-0") if place.startswith("-n") else (place.format(name),)
    found = run(tmp_path, *arguments)
    assert found.status == 3
    assert not found.asked


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpu018",), ("no pod of gdrtop runs on gpu018", "Helm chart", "gdrtop --host gpu018")),
        (
            ("--gdrtop-namespace", "own", "trainer-0"),
            ("in namespace own", "explain --host trainer-0 --over 'kubectl exec -i -n team {host} --'"),
        ),
        (("trainer-1",), ("trainer-1 is not on a node yet",)),
        (("-n", "team", "nobody"), ("there is no pod nobody in namespace team",)),
        (("node/trainer-0",), ("there is no node trainer-0",)),
        (("pod/broken",), ("The connection to the server was refused",)),
        (("--json", "gpu017"), ("options of gdrtop follow it",)),
        (("-n",), ("-n needs a value",)),
        (("deployment/x",), ("write NODE, POD, node/NAME or pod/NAME",)),
    ],
)
def test_what_cannot_run_says_what_to_do(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    found = run(tmp_path, *arguments)
    assert found.status == 3
    assert all(word in found.error for word in words), found.error
    assert not any("exec" in asked for asked in found.asked)


def test_help_is_printed_without_a_cluster(tmp_path: Path) -> None:
    for arguments, status in (((), 3), (("--help",), 0)):
        found = run(tmp_path, *arguments)
        assert (found.status, found.asked) == (status, [])
        assert "kubectl gdrtop gpu017 check" in found.out + found.error
    assert max(map(len, (found.out + found.error).splitlines())) <= 120


def test_on_a_terminal_the_dashboard_gets_one(tmp_path: Path) -> None:
    run(tmp_path)
    log = tmp_path / "log"
    child, terminal = pty.fork()
    if child == 0:  # in the child
        os.environ.update(PATH=f"{tmp_path}:{os.defpath}", LOG=str(log), TERM="tmux-256color")
        os.execv("/bin/sh", ["sh", str(SCRIPT), "gpu017"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os.close(terminal)
    asked = json.loads(log.read_text().splitlines()[-1])
    assert "--tty" in asked
    assert asked[-3:] == ["env", "TERM=tmux-256color", "/gdrtop/node"]


def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run([SHELLCHECK, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert os.access(SCRIPT, os.X_OK)
