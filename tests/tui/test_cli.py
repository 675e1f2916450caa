"""The command line as an admin or a script uses it."""

import json
import platform
import re
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.modules import ModuleFacts
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.examination import examine
from tests.support.command_line import ROOT, gdrtop, printed
from tests.support.simulated_tree import write_tree
from tests.support.tiers import USUAL_FAULTS, usual
from tests.support.trees import add_function, add_rdma_device
from tui.cli import _COMMANDS, _FLEET, _LONG, _WITHOUT_CONFIGURATION, _WITHOUT_NODE, _command, main
from tui.command_line.arguments import REFUSED
from tui.files.version import version
from tui.runtime.printing import ascii_text
from widgets.node import modules as modules_drawing


def lasting(text: str) -> list[str]:
    """The lines without the time, and without how many memory regions are registered at that moment."""
    heading, _, _, *drawings = text.splitlines()
    return [heading.rsplit("  ", 1)[0], *drawings]


def test_demo_list_names_every_simulated_node(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--demo", "list")
    nodes, _, faults = text.partition("\n\n")
    assert [line.split()[0] for line in nodes.splitlines()] == list(simulated_names())
    assert set(FAULTS) <= set(faults.split())


def test_demo_list_says_what_is_wrong_with_each_fault(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--demo", "list")
    assert all(" ".join(fault.summary.split()) in " ".join(text.split()) for fault in FAULTS.values())


def test_a_fault_that_changes_nothing_on_the_node_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "--demo", "gb200+acs-on"]) == 3
    told = capsys.readouterr().err
    assert (
        "has no effect on gb200: No ACS redirect between GPU and NIC (no GPU and NIC share a PCIe switch"
        in told
    )
    assert "; try hgx-h100+acs-on" in told


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_each_fault_changes_the_node_that_it_is_meant_for(name: str) -> None:
    fault = FAULTS[name]
    assert not SimulatedHost(f"{fault.on}+{fault.name}").faults_without_effect


def test_a_wrong_fault_names_those_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "--demo", "hgx-h100+acs"]) == 3
    told = capsys.readouterr().err
    assert "did you mean acs-on" in told
    assert len(told.splitlines()) == 1


def test_topo_draws_boxes_and_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "topo", "--demo")
    assert "SIMULATED hgx-h100" in text
    assert "NUMA 0 · CPU 0-55,112-167" in text
    assert "GPU7" in text
    assert "PIX•" in text
    assert "NCCL calls NODE PHB" in text
    assert "\x1b" not in text


def test_options_stand_before_or_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = printed(capsys, "--demo", "gb200", "topo"), printed(capsys, "topo", "--demo", "gb200")
    assert lasting(before) == lasting(after)


@pytest.mark.slow
def test_a_demo_without_a_name_may_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = printed(capsys, "--demo", "topo"), printed(capsys, "topo", "--demo")
    assert lasting(before) == lasting(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("--json", "--demo", "pcie-l40s", "modules"), ("modules", "--demo", "pcie-l40s", "--json")),
        (("--json", "fleet", "--demo", "cloud-vm"), ("fleet", "check", "--demo", "cloud-vm", "--json")),
    ],
)
def test_json_stands_before_or_after_the_command(
    before: tuple[str, ...], after: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    documents = []
    for arguments in (before, after):
        main(arguments)
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0].keys() == documents[1].keys()
    assert documents[0]["schema"] == documents[1]["schema"]


def test_json_before_a_command_without_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "completion", "bash"]) == 3
    assert "unrecognized arguments: --json" in capsys.readouterr().err


def test_another_seed_shows_the_same_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert "SIMULATED gb200" in printed(capsys, "--seed", "7", "topo", "--demo", "gb200")


@pytest.mark.parametrize("name", simulated_names())
def test_topo_json_keeps_its_contract(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(printed(capsys, "topo", "--json", "--demo", name))
    ends = {gpu["bdf"] for gpu in told["gpus"]} | {nic["name"] for nic in told["nics"]}
    assert len(told["paths"]) == len(ends) * (len(ends) - 1) // 2
    assert {path["from"] for path in told["paths"]} | {path["to"] for path in told["paths"]} == ends
    for number, gpu in enumerate(told["gpus"]):
        assert gpu["index"] == number
        assert {"name", "numa_node", "uuid"} <= gpu.keys()
    for nic in told["nics"]:
        assert {"bdf", "numa_node", "ports"} <= nic.keys()
    for path in told["paths"]:
        assert {"smi", "nccl"} <= path.keys()
        assert ("unknown" in path) == (path["smi"] is None or path["nccl"] is None)


def test_json_says_why_a_value_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(printed(capsys, "topo", "--json", "--demo", "cloud-vm"))
    assert told["gpus"][0]["numa_node"] is None
    assert "NUMA" in told["gpus"][0]["unknown"]["numa_node"]
    path = next(path for path in told["paths"] if path["to"] == "mlx5_0" and path["from"].endswith("00.0"))
    assert path["smi"] is None
    assert "NODE or SYS" in path["unknown"]
    assert path["nccl"] == "PHB"


def test_modules_in_load_order(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "modules", "--demo", "pcie-l40s")
    rows = [row.split()[1] for row in text.splitlines() if row[:1] in ("✓", "–", "✗")]
    ladder = ["ib_core", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", "nvidia_peermem"]
    assert [name for name in rows if name in ladder] == ladder
    told = json.loads(printed(capsys, "modules", "--json", "--demo", "pcie-l40s"))
    rungs = {rung["name"]: rung for rung in told["modules"]}
    assert rungs["ib_core"]["state"] == "live"
    assert rungs["nvidia_peermem"]["state"] == "not loaded"
    assert rungs["nvidia_peermem"]["refcnt"] is None
    assert rungs["nvidia_peermem"]["explanation"]


@pytest.mark.parametrize(
    ("name", "status", "verdict"),
    [
        ("pcie-l40s", 0, "✓ All modules that this node needs are loaded"),
        ("hgx-h100+no-gdr-path", 1, "✗ 1 module is missing: nvidia_peermem"),
    ],
)
def test_modules_says_first_whether_one_is_missing(
    capsys: pytest.CaptureFixture[str], name: str, status: int, verdict: str
) -> None:
    assert main(["modules", "--demo", name]) == status
    assert capsys.readouterr().out.splitlines()[1] == verdict
    assert main(["modules", "--json", "--demo", name]) == status


def test_a_tree_is_read_with_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nic = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    add_function(tmp_path, nic, 0x15B3, 0x1021, 0x020700)
    add_rdma_device(tmp_path, "mlx5_0", nic)
    text = printed(capsys, "topo", "--root", str(tmp_path))
    assert "TREE" in text
    assert "no NVIDIA GPU" in text
    assert "mlx5_0" in text


def test_escape_sequences_of_the_node_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nic = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    add_function(tmp_path, nic, 0x15B3, 0x1021, 0x020700)
    add_rdma_device(tmp_path, "mlx5\x1b[2J", nic, rate="\x1b]0;x\x07", state="1: \x1b[31mDOWN")
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/hostname").write_text("\x1b[5mhost\n")
    for arguments in (("topo",), ("topo", "--json"), ("modules",), ("modules", "--json")):
        unread = 3 if arguments[0] == "modules" else 0
        text = printed(capsys, *arguments, "--root", str(tmp_path), status=unread)
        assert "\x1b" not in text
        assert "\x07" not in text


def test_an_empty_tree_is_answered_calmly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "PCI devices could not be read" in printed(capsys, "topo", "--root", str(tmp_path))
    assert printed(capsys, "modules", "--root", str(tmp_path), status=3)
    assert json.loads(printed(capsys, "topo", "--json", "--root", str(tmp_path)))["gpus"] is None


@pytest.mark.slow
def test_this_machine_is_answered_calmly() -> None:
    for command, statuses in (("topo", (0,)), ("modules", (0, 1, 3))):
        done = gdrtop(command)
        assert done.returncode in statuses
        assert done.stderr == ""


@pytest.mark.slow
def test_a_dumb_terminal_gets_ascii_only() -> None:
    done = gdrtop("topo", "--demo", TERM="dumb")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "+- NUMA 0" in done.stdout


@pytest.mark.slow
def test_the_c_locale_gets_ascii_only_although_python_writes_utf8_then() -> None:
    done = gdrtop("topo", "--demo", LC_ALL="C")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "─" in gdrtop("topo", "--demo", LC_ALL="C", PYTHONIOENCODING="utf-8").stdout
    # Python sets LC_CTYPE=C.UTF-8 for this one.
    assert gdrtop("topo", "--demo", LC_ALL="", LANG="POSIX").stdout.isascii()
    assert ascii_text("a leading “=” is ≤ 1") == 'a leading "=" is <= 1'


@pytest.mark.slow
def test_an_encoding_without_boxes_gets_ascii_only() -> None:
    done = gdrtop("topo", "--demo", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--demo", "no-such-node", "topo"),
        ("topo", "--root", "/no/such/directory"),
        ("--interval", "0"),
        ("--interval", "soon"),
        ("no-such-command",),
        ("topo", "--no-such-option"),
        ("--verbose",),
        ("no-such\ncommand",),
        ("--seed", "many", "topo"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_status_3(arguments: tuple[str, ...]) -> None:
    done = gdrtop(*arguments)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("gdrtop: ")
    assert len(done.stderr.splitlines()) == 1


# What commands need besides to look at a node.
ARGUMENTS = {
    "bench": ("--list",),
    "diff": (".",),
    "explain": ("1",),
    "fleet bench": ("-w", "node[1-2]"),
    "hang": ("1",),
    "live": ("--seconds", "1"),
    "manifest": ("helm",),
    "record": ("{}/new.tar.gz", "--seconds", "1"),
    "report": ("{}/new.html",),
    "watch": ("--dir", "{}/ring"),
    **dict.fromkeys(("health-check", "prolog"), ("--dry-run",)),
    **dict.fromkeys(("fleet check", "fleet hang", "fleet live", "fleet watch"), ("-w", "node1")),
}
REFUSAL = re.compile(
    r"does not work with|needs a (?:running )?node[;.]|name a single node|cannot be watched"
    r"|takes its nodes as arguments|this is already a recording|not a running node"
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A value for each option that says where the node is."""
    directory = tmp_path_factory.mktemp("places")
    recording = str(directory / "node.tar.gz")
    write_tree(SimulatedHost("hgx-h100"), directory)
    assert main(["record", "--root", str(directory), "--seconds", "1", recording]) == 0
    return {"--root": str(directory), "--replay": recording, "--host": "node1"}


def test_every_file_of_a_command_is_listed() -> None:
    """The list has an order, and is read before any command is imported."""
    assert _COMMANDS.keys() >= {*_LONG, *_WITHOUT_NODE, *_WITHOUT_CONFIGURATION, *REFUSED}
    listed = {Path(str(vars(_command(name))["__file__"])) for name in _COMMANDS}
    parts = {path for path in (ROOT / "tui/commands/fleet").glob("*.py") if path.stem in _FLEET}
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tui/commands").rglob("*.py")}
    found = {path for path, text in texts.items() if "\ndef add_options(" in text and "\ndef run(" in text}
    assert found - parts == listed, "tui/cli.toml and the files of tui/commands/ differ"


@pytest.mark.parametrize(
    "command",
    [*(name for name in _COMMANDS if name not in ("fleet", *_WITHOUT_NODE)), *map("fleet {}".format, _FLEET)],
)
def test_the_help_lists_an_option_of_the_node_unless_the_command_refuses_it(
    command: str, places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    text = printed(capsys, *words, "--help")
    listed = {
        option
        for option in (*places, "--over", "--sudo", "--at")
        if re.search(rf"^  {option}[ \n]", text, re.M)
    }
    assert ("--at" in listed) == ("--replay" in listed)
    assert {"--over", "--sudo"} & listed in (set(), {"--over", "--sudo"})
    assert ("--sudo" in listed) == ("--host" in listed or words[0] == "fleet")
    for option, place in places.items():
        more = ("--over", "false {host}") if option == "--host" else ()
        arguments = [each.format(tmp_path) for each in ARGUMENTS.get(command, ())]
        main([*words, *arguments, option, place, *more])
        errors = capsys.readouterr().err
        assert bool(REFUSAL.search(errors)) == (option not in listed), errors
        for file in tmp_path.glob("new.*"):
            file.unlink()


def test_the_dashboard_without_a_terminal_points_to_the_text_commands() -> None:
    done = gdrtop("--demo")
    assert done.returncode == 3
    assert "gdrtop topo" in done.stderr


def test_help_and_version_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gdrtop topo --json" in printed(capsys, "--help")
    assert "--root" in printed(capsys, "topo", "--help")
    assert printed(capsys, "--version").startswith("gdrtop ")


def test_a_verbose_version_says_which_output_draws_the_dashboard(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = metadata.version("textual")
    monkeypatch.setattr("tui.terminal.textual_version.TESTED_VERSIONS", (installed,))
    gdrtop_line, python, textual = printed(capsys, "--version", "--verbose").splitlines()
    assert (gdrtop_line, python) == (f"gdrtop {version()}", f"Python {platform.python_version()}")
    assert textual == f"Textual {installed}, with gdrtop's byte-saving output"
    monkeypatch.setattr("tui.terminal.textual_version.TESTED_VERSIONS", ("7.0.0", "7.0.1"))
    textual = printed(capsys, "--version", "--verbose").splitlines()[-1]
    assert textual.startswith(f"Textual {installed}, with its own output: ")
    assert textual.endswith("tested only with 7.0.0 or 7.0.1")


def test_wrong_usage_is_given_to_callers_as_a_status() -> None:
    assert main(["--interval", "0"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("topo", "--demo"), ("topo", "--json", "--demo"), ("--version",), ("--help",), ("schema", "check")],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line_and_exit_status_3(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tui", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 3
    assert done.stderr == "gdrtop: the output cannot be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "arguments"), [(">&-", "topo --demo"), ("<&-", "--demo"), (">&-", "--demo")]
)
def test_closed_standard_streams_are_one_line_and_exit_status_3(closed: str, arguments: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m tui {arguments} {closed}",
        shell=True,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tui.commands.topo.write_topology", interrupted)
    assert main(["topo", "--demo"]) == 130


def test_an_interrupt_that_python_drops_in_a_callback_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Callback:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def interrupted(*_: object, **__: object) -> None:
        Callback()
        signal.pause()

    monkeypatch.setattr("tui.commands.topo.write_topology", interrupted)
    assert main(["topo", "--demo"]) == 130
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tui topo --json --demo | head -n 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout == "{\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--foo"], "try gdrtop --help"),
        (["bench", "--foo"], "try gdrtop bench --help"),
        (["bench", "--sweep", "--gpu", "2"], "try gdrtop bench --help"),
        (["record", "--seconds", "none"], "try gdrtop record --help"),
        (["check", "--jsn"], "did you mean --json?"),
        (["fleet"], "try gdrtop fleet check --help"),
        (["fleet", "live", "--sek", "5"], "try gdrtop fleet live --help"),
        (["fleet", "chek"], "did you mean check?"),
        (["env", "job.sbatch"], "did you mean gdrtop env --lint job.sbatch?"),
        (["check", "redirect"], "did you mean acs-redirect-enabled or acs-direct-nic?"),
        (["do", "load", "--demo"], "did you mean load-modules or load-peermem?"),
        (["check", "--demo", "hgx-h100,acs-on"], "hgx-h100+acs-on"),
    ],
)
def test_wrong_options_name_the_help_that_has_them(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    assert capsys.readouterr().err.rstrip().endswith(told)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("doctor", "did you mean gdrtop check?"),
        ("manual", "did you mean gdrtop help?"),
        ("top", "gdrtop alone opens the dashboard"),
        ("chek", "did you mean check?"),
        ("frob", "try gdrtop --help"),
    ],
)
def test_a_wrong_command_says_what_may_be_meant(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == 3
    told = capsys.readouterr().err
    assert f"unknown command '{word}'" in told
    assert told.rstrip().endswith(hint)


def test_a_command_behind_another_one_is_named_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "diff", "--help"]) == 3
    assert "unknown command 'diff'; did you mean gdrtop diff?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("do", "frob", "--demo"), ("bench", "--gpu", "99", "--demo")])
def test_a_name_that_is_none_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert main(list(arguments)) == 3


@pytest.mark.parametrize("arguments", [("--demo", "foo"), ("--replay", "/no/such/file")])
def test_a_wrong_name_is_said_before_the_terminal_is_asked_for(arguments: tuple[str, ...]) -> None:
    done = gdrtop(*arguments)
    assert done.returncode == 3
    assert "terminal" not in done.stderr
    assert arguments[1] in done.stderr


@pytest.mark.slow
def test_topo_prints_the_graph_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "topo", "--json", "--demo", "cloud-vm"))["graph"]["nodes"]
    assert "graph gdrtop {" in printed(capsys, "topo", "--format", "dot", "--demo", "cloud-vm")
    text = printed(capsys, "topo", "--help")
    assert all(word in text for word in ("networkx", "Graphviz"))


def test_help_shows_the_manual(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gdrtop help PAGE" in printed(capsys, "help")
    assert "doctor" in printed(capsys, "help", "doctor").lower()
    assert main(["help", "frob"]) == 3
    assert "no page, check or message has 'frob'" in capsys.readouterr().err


def test_a_node_whose_nics_cannot_use_peer_memory_misses_no_module() -> None:
    node = replace(examine(SimulatedHost("aws-p5")).node, gpudirect=Unknown(Reason.NOT_THERE))
    assert isinstance(node.modules, ModuleFacts)
    (peermem,) = (rung for rung in node.modules.ladder if rung.module == "nvidia_peermem")
    assert modules_drawing.not_needed(node, peermem) == "no NIC here that it could serve"


@pytest.mark.slow
@pytest.mark.parametrize("node", ["hgx-h100", "dgx-a100"])
def test_modules_quotes_why_the_kernel_refused_one(capsys: pytest.CaptureFixture[str], node: str) -> None:
    name = f"{node}+peermem-symbol-version-mismatch"
    main(["modules", "--demo", name])
    reason = "disagrees about version of symbol ib_register_peer_memory_client"
    assert f"the kernel refused it before: nvidia_peermem: {reason}" in capsys.readouterr().out
    main(["modules", "--json", "--demo", name])
    rungs = {rung["name"]: rung for rung in json.loads(capsys.readouterr().out)["modules"]}
    assert reason in rungs["nvidia_peermem"]["explanation"]
