"""The two sentences of the design: one door to the node, one hand that changes it; imports point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("probes", "widgets", "tui")
BACK_ROOMS = ("local", "rooted_tree", "command", "nvml", "dmabuf_probe", "cuda_driver")
# The host and its back rooms, which nobody else may use but for their dataclasses.
DOOR = {f"probes/host/{name}.py" for name in BACK_ROOMS}
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
COMMANDS = "tui/actions/local_commands.py"
# Runs the runner in a process that outlives gdrtop, and removes the files between the two.
SUPERVISOR = "tui/actions/supervisor.py"
OWN_FILES = {
    "tui/files/new_file.py": {"link", "replace", "unlink", "ftruncate", "write"},
    "tui/files/append_file.py": {"makedirs", "replace", "write"},
    "tui/bandwidth/results_store.py": {"makedirs"},
    "tui/runtime/lock.py": {"makedirs", "ftruncate"},  # the file that is locked, and who has it
}
# Starts tests and ends them: with a keeper of each, a program of its own that outlives a killed gdrtop.
TESTS = {"tui/bandwidth/processes.py", "tui/bandwidth/supervisor.py"}
# The import order, lowest first: what stands in a row imports only from the rows above it in this table.
IMPORT_ORDER = (
    ("probes/base",),
    ("probes/host",),
    ("probes/facts",),
    ("probes/recording", "probes/topology"),
    ("probes/nccl",),
    ("probes/snapshot",),
    ("probes/queries",),
    ("probes/plans", "probes/bandwidth"),
    ("probes/checks", "probes/simulation"),
    ("widgets/base",),
    ("widgets/node",),
    ("widgets/doctor", "widgets/bandwidth"),
    ("tui/files", "tui/manual"),
    ("tui/runtime",),
    ("tui/actions",),
    ("tui/bandwidth",),
    ("tui/screens",),
    ("tui/controllers", "tui/open_host"),
    ("tui/app", "tui/commands"),
    ("tui/cli",),
    ("tui/__main__", "probes", "widgets", "tui"),
)
LEVEL = {package: level for level, row in enumerate(IMPORT_ORDER) for package in row}
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


def test_imports_only_point_down() -> None:
    """A folder imports from its own level's lower folders only; nothing imports from above or beside it."""
    upward = [
        f"{name_of(path)} imports {module}"
        for path in MODULES
        for module, names in imports(path)
        for target in targets(module, names)
        if package_of(name_of(path)) != target and LEVEL[package_of(name_of(path))] <= LEVEL[target]
    ]
    assert not upward


def package_of(path: str) -> str:
    """The row of the import order that a file or module belongs to: probes/facts, tui/app."""
    parts = path.removesuffix(".py").split("/")
    return "/".join(parts[:2]) if len(parts) > 1 and parts[1] != "__init__" else parts[0]


def targets(module: str, names: tuple[str, ...]) -> list[str]:
    """The rows of the import order that an import names."""
    if module in PACKAGES:
        return [package_of(f"{module}/{name}") for name in names]
    return [package_of(module.replace(".", "/"))] if module.split(".")[0] in PACKAGES else []


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
            "probes.host.rooted_tree",
            "probes.host.command",
            "probes.host.nvml",
            "probes.host.dmabuf_probe",
            "probes.host.cuda_driver",
        ):
            # Who starts programs finds them where the host does, and a simulated node calls the same trusted.
            starts = name_of(path) in {COMMANDS, SUPERVISOR, *TESTS}
            trusted = {"TRUSTED_PATH"} if "simulation" in name_of(path) or starts else set()
            found = {"find_command"} if starts else set()
            assert set(names) <= FACTS | trusted | found


@pytest.mark.parametrize("path", [p for p in MODULES if not name_of(p).startswith("probes")], ids=name_of)
def test_only_confirmed_commands_change_anything(path: Path) -> None:
    if name_of(path) in {COMMANDS, SUPERVISOR, *TESTS}:
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
    assert "tui.commands.bench.command" in modules
    assert not modules & {"textual", "networkx", "pynvml", "probes.recording.format", "tarfile"}


@pytest.mark.parametrize("command", ["topo", "modules"])
def test_text_commands_do_without_textual_and_networkx(command: str) -> None:
    modules = modules_after(f"from tui.cli import main\nmain([{command!r}, '--demo'])")
    assert "tui.commands.topo" in modules
    assert not modules & {"textual", "networkx", "pynvml", "tarfile", "tui.files.new_file"}


def test_recording_and_replaying_as_text_do_without_textual_and_networkx(tmp_path: Path) -> None:
    file = str(tmp_path / "node.tar.gz")
    record = ["record", file, "--seconds", "1", "--demo", "cloud-vm"]
    for arguments in (record, ["topo", "--replay", file]):
        modules = modules_after(f"from tui.cli import main\nassert main({arguments!r}) == 0")
        assert "tui.files.new_file" in modules
        assert not modules & {"textual", "networkx", "pynvml"}


def test_a_command_line_is_understood_before_any_host_is_loaded() -> None:
    later = {
        *("probes.host.local", "probes.facts.system.tools", "probes.bandwidth.planning.series"),
        *("tui.commands.bench.command", "tui.commands.bench.options"),
    }
    assert not modules_after("from tui import cli\ncli._parser().parse_args(['--demo'])") & later


def test_the_dashboard_starts_without_networkx_and_nvml() -> None:
    later = {
        *("networkx", "pynvml", "probes.plans.catalogue", "probes.checks.registry", "tui.actions.dispatcher"),
        *("probes.bandwidth", "tui.bandwidth.session"),
        *("tui.screens.bandwidth_run.state", "tui.screens.bandwidth_setup.state"),
    }
    assert not modules_after("import tui.app") & later
