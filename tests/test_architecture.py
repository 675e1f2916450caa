"""The rules of the design: only probes/host reads the node, the runner changes it, imports point down."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

from probes.facts.pci.nic_families import FAMILIES
from tests.support.sources import (
    MODULES,
    PACKAGES,
    ROOT,
    called,
    imports,
    module_of,
    modules_after,
    name_of,
    nodes,
    source_of,
    tree_of,
)

MACHINE = "probes/host/machine/"
LOCAL_HOST = "probes.host.machine.local"
# The local host and the modules that it asks this machine with.
REMOTE = "probes/host/remote/"
HOST_MODULES = {
    "probes/host/trusted_path.py",
    *(f"{folder}{path.name}" for folder in (MACHINE, REMOTE) for path in (ROOT / folder).glob("*.py")),
}
IO_MODULES = {
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
    "tui/launch.py": {"write"},  # to the standard streams
    "tui/files/new_file.py": {"makedirs", "link", "replace", "unlink", "ftruncate", "write"},
    "tui/files/append_file.py": {"makedirs", "replace", "write"},
    "tui/files/crash_file.py": {"makedirs", "unlink"},
    "tui/files/job_file.py": {"unlink"},
    "tui/files/since_ok.py": {"makedirs"},
    "tui/bandwidth/results_store.py": {"makedirs"},
    "tui/commands/config.py": {"unlink"},  # the copy that was edited
    "tui/runtime/lock.py": {"makedirs", "ftruncate"},  # the file that is locked, and who has it
    "tui/commands/watch/ring_directory.py": {"unlink", "ftruncate", "write"},  # what gdrtop watch records
    "tui/terminal/driver.py": {"write"},  # the terminal, when its writer thread hangs
}
# All other code reads files by these. A name can lead to what a user has chosen, and opening a device can
# reset the node: read_file.py and files.py look at a reference first, and collector.py on other nodes.
OPENERS = {
    "probes/host/machine/files.py": {"_look", "_reopen", "_read", "names", "_enter", "__init__", "can_open"},
    "probes/host/remote/collector.py": {"read_file", "read_range", "kernel_log", "can_open"},
    "tui/files/read_file.py": {"open_harmless"},
    # Names that no user can turn: of /proc, /sys and /dev, and references to directories.
    "probes/host/machine/command.py": {"_name_and_parent", "_words"},
    "probes/host/machine/command_server.py": {"process_stats", "main"},
    "probes/host/machine/counter_files.py": {"__init__", "read"},
    "probes/host/machine/kernel_log_reader.py": {"read"},
    "probes/host/machine/namespace_child.py": {"main"},
    "probes/host/machine/rdma_namespaces.py": {"hidden", "can_enter"},
    "probes/host/machine/library_child.py": {"_is_running", "_silence"},
    "tui/bandwidth/pairs/node_server.py": {"_supervise"},
    "tui/bandwidth/prove/child.py": {"__init__"},
    "tui/bandwidth/supervisor.py": {"process_table"},
    "tui/launch.py": {"_open_standard_streams"},
    "tui/terminal/driver.py": {"_watch"},
    # gdrtop's own files, in directories that only their user can write to; the last part is never a link.
    "tui/actions/supervisor.py": {"_run", "_create", "_claimed", "main"},
    "tui/files/append_file.py": {"_append", "_tail", "_set_mode"},
    "tui/files/since_ok.py": {"confirm"},
    "tui/files/new_file.py": {"_place", "__init__", "keep"},
    "tui/files/reliability/database.py": {"_locked", "_opened"},
    "tui/runtime/lock.py": {"open_own_directory", "_roots_holder", "_open_file"},
    "tui/commands/watch/ring_directory.py": {"begin_segment"},
}
# Tunes its own process: the allocator, and whether it ends with its parent. Runs the user's editor, and the
# command by which an admin is told of events; gdrtop makes neither of these commands.
OWN_PROCESS = {
    "tui/runtime/memory.py": {"ctypes"},
    "tui/commands/config.py": {"subprocess"},
    "tui/commands/watch/watch.py": {"subprocess"},
}
# Starts tests and ends them: with a supervisor of each, a program of its own that outlives a killed gdrtop.
TESTS = {
    "tui/bandwidth/processes.py",
    "tui/bandwidth/supervisor.py",
    "tui/bandwidth/prove/child.py",  # holds GPU memory for a moment
    "tui/bandwidth/pairs/nccl_rank.py",  # sends from GPU memory
    "tui/bandwidth/pairs/node_server.py",
    "tui/bandwidth/pairs/remote_processes.py",
}
# The import order, lowest first: what stands in a row imports only from the rows above it in this table.
IMPORT_ORDER = (
    ("probes/base",),
    ("probes/host", "probes/messages"),
    ("probes/facts",),
    ("probes/recording", "probes/topology"),
    ("probes/nccl",),
    ("probes/snapshot",),
    ("probes/queries",),
    ("probes/plans",),
    ("probes/bandwidth",),
    ("probes/live",),
    ("probes/checks", "probes/simulation"),
    ("probes/acceptance",),
    ("probes/setup", "probes/metrics", "probes/slurm"),
    ("probes/fleet", "probes/read", "probes/repair"),
    ("widgets/base",),
    ("widgets/node",),
    ("widgets/doctor", "widgets/bandwidth", "widgets/live", "widgets/nccl"),
    ("widgets/setup", "widgets/report", "widgets/fleet", "widgets/read"),
    ("tui/launch",),
    ("tui/files", "tui/manual", "tui/terminal"),
    ("tui/settings",),
    ("tui/runtime",),
    ("tui/command_line",),
    ("tui/actions",),
    ("tui/bandwidth",),
    ("tui/screens",),
    ("tui/controllers",),
    ("tui/terminal_app",),
    ("tui/app",),
    ("tui/fleet_app",),
    ("tui/dashboard",),
    ("tui/commands",),
    ("tui/cli",),
    ("tui/__main__", "probes", "widgets", "tui"),
)
# What several folders of tests import, lowest first: what they share, and the programs of the tests.
TEST_ORDER = ("tests/recordings", "tests/support", "tests/node_vm", "tests/perf", "tests")
LEVEL = {package: level for level, row in enumerate(IMPORT_ORDER) for package in row}


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


def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = networkx.DiGraph()
    names = {module_of(path) for path in MODULES}
    for path in MODULES:
        here = module_of(path)
        for module, taken in imports(path):
            for other in (module, *(f"{module}.{name}" for name in taken)):
                if other in names and other != here:
                    graph.add_edge(here, other)
    assert not [circle for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]


def test_every_file_is_imported() -> None:
    """A probe that no examination has, or a screen that nothing opens, would be of no use."""
    named = ("tui/__main__.py", "tui/commands/", "probes/bandwidth/tools/", "probes/simulation/bandwidth/")
    used = {
        name
        for path in MODULES
        for module, names in imports(path)
        for name in (module, *(f"{module}.{name}" for name in names))
    } | {"tui.cli"}  # tui/launch.py imports it without an import statement
    unused = [name_of(path) for path in MODULES if path.stem != "__init__" and module_of(path) not in used]
    unused = [name for name in unused if not name.startswith(named)]  # those are imported by their names
    assert not unused, f"nothing imports {unused}"


def test_no_folder_imports_itself_by_way_of_others() -> None:
    graph = networkx.DiGraph()
    folders = {module_of(path): name_of(path.parent) for path in MODULES}
    for path in MODULES:
        for module, taken in imports(path):
            for other in (module, *(f"{module}.{name}" for name in taken)):
                here, there = folders[module_of(path)], folders.get(other)
                if there is not None and there != here:
                    graph.add_edge(here, there)
    assert not [circle for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]


def test_folders_of_tests_share_only_what_is_below_all_of_them() -> None:
    tests = {module_of(path): path for path in (ROOT / "tests").rglob("*.py")}
    levels = {folder: level for level, folder in enumerate(TEST_ORDER)}
    wrong = set()
    for path in tests.values():
        here = name_of(path.parent)
        for module, names in imports(path):
            for other in (module, *(f"{module}.{name}" for name in names)):
                there = name_of(tests[other].parent) if other in tests else here
                is_below = levels.get(there, len(levels)) < levels.get(here, len(levels))
                if there != here and (not is_below or other.rpartition(".")[2].startswith("test_")):
                    wrong.add(f"{name_of(path)} imports {other}")
    assert not wrong, "what tests share belongs in tests/support:\n" + "\n".join(sorted(wrong))


def test_names_are_nouns_and_verbs() -> None:
    found = {
        f"{name_of(path)}:{line}: {name}"
        for path in (*MODULES, *sorted((ROOT / "tests").rglob("*.py")))
        for line, name in source_of(path).no_names
    }
    assert not found, "name these by what they are:\n" + "\n".join(sorted(found))


def test_tests_have_the_names_of_what_they_test_or_describe_it() -> None:
    """tests/probes/base/test_history.py tests probes/base/history.py; others describe what they test."""
    undescribed = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = ROOT / path.parent.relative_to(ROOT / "tests")
        if not folder.is_dir() and not source_of(path.parent / "__init__.py").docstring:
            undescribed.append(f"{name_of(path.parent)}/__init__.py")
        if not (folder / path.name.removeprefix("test_")).exists() and not source_of(path).docstring:
            undescribed.append(name_of(path))
    assert not undescribed, "say in the first docstring what these test: " + ", ".join(undescribed)


def test_only_the_host_reaches_outside() -> None:
    for path in MODULES:
        name = name_of(path)
        if name.startswith("probes") and name not in HOST_MODULES:
            reached = {module.split(".")[0] for module, _ in imports(path)} & IO_MODULES
            assert not reached, name
            assert "open" not in {function for owner, function in called(path) if not owner}, name


def opening_functions(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """Yield the function around each call that opens a file by a name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            function = node.func
            is_os = isinstance(function, ast.Attribute) and ast.unparse(function) in ("os.open", "io.open")
            if is_os or (isinstance(function, ast.Name) and function.id == "open"):
                yield inside
        yield from opening_functions(node, node.name if isinstance(node, ast.FunctionDef) else inside)


def test_a_name_that_a_user_chose_is_opened_in_one_place() -> None:
    found = {name_of(path): set(opening_functions(tree_of(path))) for path in MODULES}
    assert {name: functions for name, functions in found.items() if functions} == OPENERS


def test_only_the_local_host_uses_what_opens_this_machine() -> None:
    for path in MODULES:
        name = name_of(path)
        # Who starts programs finds them where the host does, and a simulated node trusts the same paths.
        starts = name in {COMMANDS, SUPERVISOR, *TESTS}
        allowed = {"find_command", "environment_of"} if starts else set()
        allowed |= {"TRUSTED_PATH"} if starts or "simulation" in name else set()
        for module, names in imports(path):
            if name not in HOST_MODULES and module.startswith("probes.host.machine"):
                assert module == LOCAL_HOST or set(names) <= allowed, name


def test_clustershell_comes_without_its_configuration_files() -> None:
    """By itself it reads files of HOME, which name commands and modules, also as root."""
    users = [name_of(path) for path in MODULES for module, _ in imports(path) if "ClusterShell" in module]
    assert set(users) == {"probes/host/remote/cluster_shell.py"}


def test_only_confirmed_commands_change_anything() -> None:
    for path in MODULES:
        name = name_of(path)
        if name.startswith("probes") or name in {COMMANDS, SUPERVISOR, *TESTS}:
            continue
        imported = {module.split(".")[0] for module, _ in imports(path)}
        assert not imported & ({"subprocess", "ctypes", "tempfile"} - OWN_PROCESS.get(name, set())), name
        forbidden = CHANGING - OWN_FILES.get(name, set())
        for owner, function in called(path):
            assert (owner, function) != ("", "open"), name
            assert not (owner in ("os", "shutil") and function in forbidden), name


def test_the_supervisor_removes_its_own_files_and_kills_nothing() -> None:
    calls = called(ROOT / SUPERVISOR)
    on_os = {function for owner, function in calls if owner == "os"}
    assert on_os & CHANGING <= {"unlink", "write"}
    assert "open" not in {function for owner, function in calls if not owner}


def test_what_starts_tests_changes_no_file() -> None:
    for name in TESTS:
        calls = called(ROOT / name)
        # A supervisor writes to the socket by which it was asked.
        assert {function for owner, function in calls if owner == "os"} & CHANGING <= {"kill", "write"}
        opened = [
            node
            for node in nodes(tree_of(ROOT / name))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
        ]
        assert all(ast.literal_eval(call.args[1]) == "rb" for call in opened)


@pytest.mark.slow
def test_bandwidth_tests_as_text_do_not_import_textual() -> None:
    modules = modules_after(
        "from tui.cli import main\nassert main(['bench', '--demo', '--test', 'write-lat']) == 0"
    )
    assert "tui.commands.bench.run" in modules
    assert not modules & {"textual", "pynvml", "probes.recording.format", "tarfile"}


@pytest.mark.parametrize("command", ["check", "topo", "modules"])
def test_text_commands_do_not_import_textual(command: str) -> None:
    modules = modules_after(f"from tui.cli import main\nmain([{command!r}, '--demo'])")
    assert "tui.runtime.printing" in modules
    assert not modules & {"textual", "pynvml", "tarfile", "tui.files.new_file", "yaml"}
    assert not modules & {"tui.settings.table", "tui.settings.merge"}  # nothing is configured
    is_graph_drawn = command == "topo"
    assert ("networkx" in modules) == is_graph_drawn
    assert is_graph_drawn or "importlib.resources" not in modules  # networkx imports it
    later = ("probes.simulation.faults", "probes.simulation.commands")
    assert not [name for name in modules if name.startswith(later)]


def test_the_dashboard_imports_no_facts_before_its_first_paint() -> None:
    modules = modules_after(
        "import os, sys, tui.app, tui.cli, tui.dashboard\nos.environ['TERM'] = 'xterm'\n"
        "tui.dashboard._is_terminal = lambda _: True\n"
        "tui.app.GdrtopApp.run = lambda self: sys.exit(0)\ntui.cli.main(['--demo'])"
    )
    assert "tui.screens.overview.screen" in modules
    assert not [name for name in modules if name.startswith(("probes.facts.", "probes.snapshot", "networkx"))]


@pytest.mark.slow
def test_live_ras_and_watch_do_not_import_textual(tmp_path: Path) -> None:
    live = ["live", "--demo", "cloud-vm", "--seconds", "1"]
    modules = modules_after(f"from tui.cli import main\nmain({live!r})")
    assert "tui.runtime.node_monitor" in modules
    assert not modules & {
        "textual",
        "pynvml",
        "tarfile",
        "tui.files.new_file",
        "tui.commands.watch.ring_recorder",
    }
    modules = modules_after("from tui.cli import main\nmain(['ras', '--demo', '--yes'])")
    assert "tui.commands.ras" in modules
    assert not modules & {"textual", "pynvml", "tarfile", "tui.files.new_file"}
    watch = "from tui.commands.watch import watch\nfrom tui.cli import main\nmain(['watch', '--unit'])"
    modules = modules_after(watch)
    assert "tui.commands.watch.ring_recorder" in modules
    assert not modules & {"textual", "pynvml"}


def test_reading_a_log_does_not_import_textual(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    modules = modules_after(f"from tui.cli import main\nmain(['nccl-log', '{tmp_path}/log'])")
    assert "probes.nccl.log.reader" in modules
    assert not modules & {"textual", "pynvml", "networkx", "tarfile"}


def test_a_node_without_jobs_needs_no_reader_of_logs(tmp_path: Path) -> None:
    modules = modules_after(f"from tui.cli import main\nmain(['check', '--root', '{tmp_path}'])")
    assert "probes.nccl.log.facts" in modules
    assert not modules & {"probes.nccl.log.reader", "probes.nccl.log.collect", "probes.nccl.log.messages"}


def test_a_node_whose_nics_are_not_below_the_switches_of_its_gpus_needs_no_networkx() -> None:
    code = "from tui.cli import main\nmain(['check', '--demo', 'pcie-l40s'])"
    assert "networkx" not in modules_after(code)


@pytest.mark.parametrize("arguments", [["schema"], ["--version"], ["--demo", "list"]])
def test_commands_that_need_no_topology_do_not_import_networkx(arguments: list[str]) -> None:
    assert "networkx" not in modules_after(f"from tui.cli import main\nmain({arguments!r})")


@pytest.mark.slow
def test_recording_and_replaying_as_text_do_not_import_textual(tmp_path: Path) -> None:
    file = str(tmp_path / "node.tar.gz")
    record = ["record", file, "--seconds", "1", "--demo", "cloud-vm"]
    for arguments in (record, ["topo", "--replay", file]):
        modules = modules_after(f"from tui.cli import main\nassert main({arguments!r}) == 0")
        assert "tui.files.new_file" in modules
        assert not modules & {"textual", "pynvml"}


def test_a_command_line_is_understood_before_any_host_is_loaded() -> None:
    later = {
        *("probes.host.machine.local", "probes.facts.system.tools", "probes.bandwidth.planning.series"),
        *("tui.commands.bench.run", "tui.commands.bench.options"),
    }
    assert not modules_after("from tui import cli\ncli.command_parser().parse_args(['--demo'])") & later


def test_the_command_line_starts_without_the_options_of_commands() -> None:
    """A key that completes a word, --version and --help pay for each import of it."""
    assert not modules_after("import tui.cli") & {
        "dataclasses",
        "tui.command_line.options",
        "probes.base.frozen",
    }


def test_the_dashboard_starts_without_networkx_and_nvml() -> None:
    later = {
        *("networkx", "pynvml", "probes.plans.catalogue", "probes.checks.registry", "tui.actions.dispatcher"),
        *("probes.bandwidth", "tui.bandwidth.session", "probes.facts.node", "probes.snapshot.verdict"),
        *("tui.screens.bandwidth_run.state", "tui.screens.bandwidth_setup", "tui.screens.list_screen"),
    }
    assert not modules_after("import tui.app") & later


# Equal by chance, or repeated on purpose.
EQUAL = {
    "'127.0.0.1'",
    "'/run/gdrtop'",  # each file of its own, which a test moves
    "'/usr/share/nvidia'",
    "'/dev/gdrdrv'",
    "re.compile('[A-Za-z0-9_.-]{1,64}')",
    "{'/dev/', '/proc/', '/sys/'}",  # no logs are there; the kernel makes them
}
REMOTE = "probes/host/remote/collector.py"  # runs alone on the node that is read


def test_no_constant_has_two_homes() -> None:
    """A fact that stands in two files is corrected in one of them."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        if name_of(path) == REMOTE:
            continue
        for name, value in facts_of(tree_of(path)):
            if text := text_of_fact(value):
                homes.setdefault(text, []).append(f"{name_of(path)} {name}")
    several = {text: found for text, found in homes.items() if len({row.split()[0] for row in found}) > 1}
    assert {text: found for text, found in several.items() if text not in EQUAL} == {}


def test_no_constant_is_set_twice() -> None:
    twice = [
        f"{name_of(path)} {name}"
        for path in MODULES
        for name, count in Counter(name for name, _ in facts_of(tree_of(path))).items()
        if count > 1 and not name.startswith("line ")
    ]
    assert not twice


def test_compute_capabilities_stand_in_the_rows_of_the_generations() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        for node in nodes(tree_of(path))
        if isinstance(node, ast.Compare) and "capability" in ast.unparse(node.left)
        if isinstance(node.comparators[0], ast.Tuple)
    ]
    assert not found, f"take these from probes/facts/gpu/generations.py: {found}"


# Printed as a whole: in topo --json, modules --json, findings, the document of a job, as setpci's words or as
# the first line of a recording. The others are what a host answers, as recordings have it.
WHOLE = {"RdmaDevice", "SymbolProvider", "AcsFlags", "GrownCounter", "Manifest", "PairGain", "_Owner"} | {
    *("CollectiveSpeed", "FleetJob", "NvmlGpu", "NvmlFacts", "QueuePair")
}


def test_every_field_of_a_fact_is_read() -> None:
    """What is probed and tested, and neither judged nor shown, only costs."""
    declared: dict[tuple[str, str], str] = {}
    templates = (path.read_text("utf-8") for path in (ROOT / "widgets").rglob("*.j2"))
    read = {name for text in templates for name in re.findall(r"(?<=\w)\.(\w+)", text)}
    for path in MODULES:
        for node in nodes(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "attrgetter":
                texts = (text.value for text in node.args if isinstance(text, ast.Constant))
                read.update(part for text in texts for part in str(text).split("."))
            elif isinstance(node, ast.ClassDef) and is_record(node):
                rows = (row for row in node.body if isinstance(row, ast.AnnAssign))
                declared |= {(node.name, ast.unparse(row.target)): name_of(path) for row in rows}
    unread = {key: path for key, path in declared.items() if key[1] not in read and key[0] not in WHOLE}
    assert not unread, f"nothing reads these: {unread}"


def is_record(node: ast.ClassDef) -> bool:
    """Whether a class is a frozen one, a dataclass or a named tuple."""
    words = {ast.unparse(word).partition("(")[0] for word in (*node.decorator_list, *node.bases)}
    return bool(words & {"frozen", "dataclass", "NamedTuple"})


# What each module needs, and what does not work without it.
MODULE_TABLE = "probes/facts/kernel/modules.py"


def test_what_differs_between_nic_families_stands_in_their_rows() -> None:
    """Another family would be missing in a list of their modules that stands anywhere else."""
    modules = {name for family in FAMILIES for name in family.modules}
    found = []
    for path in MODULES:
        if name_of(path) in (MODULE_TABLE, "probes/facts/pci/nic_families.py", REMOTE):
            continue
        for node in nodes(tree_of(path)):
            items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
            texts = {item.value for item in items if isinstance(item, ast.Constant)}
            if len(texts & modules) > 1:
                found.append(f"{name_of(path)}:{getattr(node, 'lineno', 0)}")
    assert not found, f"take these from probes/facts/pci/nic_families.py: {found}"


def facts_of(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the constants of a file, and the members of which a condition asks, by line."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[-1] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target).strip("_()").replace("_", "").replace(", ", "").isupper():
                yield ast.unparse(target), node.value
    for node in nodes(tree):
        if isinstance(node, ast.Compare) and are_members(node.comparators[0]):
            yield f"line {node.lineno}", node.comparators[0]


def are_members(value: ast.expr) -> bool:
    """Whether these are members of an enumeration of gdrtop."""
    return isinstance(value, ast.Tuple | ast.Set) and all(
        isinstance(item, ast.Attribute) and ast.unparse(item)[0].isupper() for item in value.elts
    )


def text_of_fact(value: ast.expr) -> str:
    """A pattern, a text, or a set of texts or members: not a limit, which may be equal by chance."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "frozenset" and value.args:
        value = value.args[0]
    text = ast.unparse(value)
    if isinstance(value, ast.Call):
        return text if ast.unparse(value.func) == "re.compile" and len(text) > 24 else ""
    if isinstance(value, ast.Constant):
        return text if isinstance(value.value, str) and len(value.value) > 8 else ""
    if not isinstance(value, ast.Tuple | ast.Set | ast.List) or len(value.elts) < 2:
        return ""
    are_texts = all(isinstance(item, ast.Constant) and isinstance(item.value, str) for item in value.elts)
    return f"{{{', '.join(sorted(map(ast.unparse, value.elts)))}}}" if are_texts or are_members(value) else ""
