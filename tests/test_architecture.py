"""The two sentences of the design: one door to the node, one hand that changes it; imports point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("probes", "widgets", "tui")
# The host and its back rooms, which nobody else may use but for their dataclasses.
DOOR = {f"probes/{name}.py" for name in ("host", "held_tree", "command", "nvml", "verbs", "cuda_driver")}
OUTSIDE = {
    "os",
    "subprocess",
    "ctypes",
    "socket",
    "shutil",
    "pathlib",
    "pynvml",
    "psutil",
    "io",
    "glob",
    "tempfile",
}
FACTS = {"NvmlFacts", "NvmlGpu", "NvmlLive", "CommandOutput"}
CHANGING = {
    "remove",
    "unlink",
    "rename",
    "replace",
    "rmdir",
    "mkdir",
    "makedirs",
    "kill",
    "system",
    "popen",
    "chmod",
    "link",
    "symlink",
    "truncate",
    "ftruncate",
    "write",
}
# gdrtop's own files are not the node's: a new one for its user, the log of what it did, and results. Their
# modules may make them by these calls and no others.
RUNNER = "tui/actions/runner.py"
# Runs the runner in a process that outlives gdrtop, and removes the files between the two.
SUPERVISOR = "tui/actions/supervisor.py"
OWN_FILES = {
    "tui/new_file.py": {"link", "replace", "unlink", "ftruncate", "write"},
    "tui/lines_file.py": {"makedirs", "replace", "write"},
    "tui/bandwidth/results_file.py": {"makedirs"},
    "tui/actions/lock.py": {"makedirs", "ftruncate"},  # the file that is locked, and who has it
}
# Starts tests and ends them: with a keeper of each, a program of its own that outlives a killed gdrtop.
TESTS = {"tui/bandwidth/processes.py", "tui/bandwidth/keeper.py"}
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """(module, names taken from it) of every import, wherever it stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.extend((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, tuple(alias.name for alias in node.names)))
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_from_tui_to_widgets_to_probes(path: Path) -> None:
    forbidden = {"probes": {"widgets", "tui"}, "widgets": {"tui"}, "tui": set()}[name_of(path).split("/")[0]]
    assert not {module.split(".")[0] for module, _ in imports(path)} & forbidden


@pytest.mark.parametrize("path", [p for p in MODULES if name_of(p).startswith("probes/plans/")], ids=name_of)
def test_checks_call_plans_and_plans_call_no_check(path: Path) -> None:
    """What a plan may take from probes/checks is what reads facts, and what a finding is."""
    for module, _ in imports(path):
        if module.startswith("probes.checks."):
            text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
            assert "@AREA.check" not in text
            assert "probes.plans" not in text


@pytest.mark.parametrize("path", [p for p in MODULES if name_of(p).startswith("probes")], ids=name_of)
def test_only_the_host_reaches_outside(path: Path) -> None:
    if name_of(path) in DOOR:
        return
    reached = {module.split(".")[0] for module, _ in imports(path)} & OUTSIDE
    assert not reached
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "open"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nobody_but_the_host_uses_its_back_rooms(path: Path) -> None:
    if name_of(path) in DOOR:
        return
    for module, names in imports(path):
        if module in (
            "probes.held_tree",
            "probes.command",
            "probes.nvml",
            "probes.verbs",
            "probes.cuda_driver",
        ):
            # Who starts programs finds them where the host does, and a simulated node calls the same trusted.
            starts = name_of(path) in {RUNNER, SUPERVISOR, *TESTS}
            trusted = {"TRUSTED_PATH"} if "simulation" in name_of(path) or starts else set()
            found = {"find_command"} if starts else set()
            assert set(names) <= FACTS | trusted | found


@pytest.mark.parametrize("path", [p for p in MODULES if not name_of(p).startswith("probes")], ids=name_of)
def test_only_the_runner_changes_anything(path: Path) -> None:
    if name_of(path) in {RUNNER, SUPERVISOR, *TESTS}:
        return
    assert not {module.split(".")[0] for module, _ in imports(path)} & {"subprocess", "ctypes", "tempfile"}
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            assert node.func.id != "open"
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            forbidden = CHANGING - OWN_FILES.get(name_of(path), set())
            assert not (node.func.value.id in ("os", "shutil") and node.func.attr in forbidden)


def test_the_supervisor_removes_its_own_files_and_kills_nothing() -> None:
    calls = [
        node for node in ast.walk(ast.parse((ROOT / SUPERVISOR).read_text())) if isinstance(node, ast.Call)
    ]
    named = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    on_os = {func.attr for func in named if isinstance(func.value, ast.Name) and func.value.id == "os"}
    assert on_os & CHANGING <= {"unlink", "write"}
    assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "open"]


def test_what_starts_tests_changes_no_file() -> None:
    for name in TESTS:
        calls = [
            node for node in ast.walk(ast.parse((ROOT / name).read_text())) if isinstance(node, ast.Call)
        ]
        named = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
        on_os = {func.attr for func in named if isinstance(func.value, ast.Name) and func.value.id == "os"}
        # A keeper writes to the socket by which it was asked.
        assert on_os & CHANGING <= {"kill", "write"}
        opened = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "open"]
        modes = [ast.literal_eval(call.args[1]) for call in opened]
        assert modes == ["rb"] * len(modes)


def modules_after(code: str) -> set[str]:
    """What Python has imported after running a piece of code in a process of its own."""
    code += "\nimport sys\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def test_bandwidth_tests_as_text_do_without_textual_and_networkx() -> None:
    modules = modules_after(
        "from tui.cli import main\nassert main(['bench', '--demo', '--test', 'write-lat']) == 0"
    )
    assert "tui.bench" in modules
    assert not modules & {"textual", "networkx", "pynvml", "tui.recording_file", "tarfile"}


@pytest.mark.parametrize("command", ["topo", "modules"])
def test_text_commands_do_without_textual_and_networkx(command: str) -> None:
    modules = modules_after(f"from tui.cli import main\nmain([{command!r}, '--demo'])")
    assert "tui.report" in modules
    assert not modules & {"textual", "networkx", "pynvml", "tui.new_file", "tui.recording_file", "tarfile"}


def test_recording_and_replaying_as_text_do_without_textual_and_networkx(tmp_path: Path) -> None:
    file = str(tmp_path / "node.tar.gz")
    record = ["record", file, "--seconds", "1", "--demo", "cloud-vm"]
    for arguments in (record, ["topo", "--replay", file]):
        modules = modules_after(f"from tui.cli import main\nassert main({arguments!r}) == 0")
        assert {"tui.new_file", "tui.recording_file"} & modules
        assert not modules & {"textual", "networkx", "pynvml"}


def test_a_command_line_is_understood_before_any_host_is_loaded() -> None:
    later = {"probes.host", "probes.tools", "probes.bandwidth.series", "tui.bench", "tui.bench_options"}
    assert not modules_after("from tui import cli\ncli._parser().parse_args(['--demo'])") & later


def test_the_dashboard_starts_without_networkx_and_nvml() -> None:
    later = {
        *("networkx", "pynvml", "probes.plans.offers", "probes.checks.registry", "tui.actions.dispatcher"),
        *("probes.bandwidth", "tui.bandwidth.bench", "tui.bandwidth.live_state", "tui.bandwidth.setup_state"),
    }
    assert not modules_after("import tui.app") & later
