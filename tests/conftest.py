"""What no test may depend on is taken away here."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.tiers import NEWER_NODES, is_left_out, names_node

# Textual draws without colors where NO_COLOR is set, even empty (tests/tui/test_terminals.py sets it); the
# text reports follow the others.
for _name in ("NO_COLOR", "COLUMNS", "LINES", "PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LC_CTYPE", "LANG"):
    os.environ.pop(_name, None)
# Bytecode that is kept saves each worker and each program that a test starts a compilation of everything.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What this user has configured is none of the tests' business.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
# So is what they did to simulated nodes.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="gdrtop-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
# Screens show local time.
os.environ["TZ"] = "UTC"
time.tzset()
# A dumb terminal gets ASCII only. TEXTUAL_THEME needs nothing here: the app chooses its theme itself.
os.environ["TERM"] = "xterm-256color"
# A busy machine is no error. Every run tries the same examples; with --hypothesis-profile random, others.
_EXAMPLES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("gdrtop", _EXAMPLES)
settings.register_profile("random", _EXAMPLES, derandomize=False)
settings.load_profile("gdrtop")
# With thousands of tests and of remembered examinations, looking for garbage often is a tenth of the time.
gc.set_threshold(20_000, 10, 20)
# Tests that run in the background of a script or under nohup inherit these signals ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def patient_sources() -> Iterator[None]:
    """Let each reading wait for its sources: on a busy machine a process would be "not read yet"."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("probes.live.model.paced_source", "probes.live.processes.tracked_process"):
            patch.setattr(f"{module}.PATIENCE_SECONDS", 30.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_saved_facts() -> Iterator[None]:
    """Neither save nor read the facts of a node that works, unless a test names a directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tui.files.since_ok.last_ok_directory", lambda: "")
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what a test does with a newer simulated node in the slow tier; leave out some nodes."""
    left_out: list[pytest.Item] = []
    for item in items:
        call = getattr(item, "callspec", None)
        values = () if call is None else tuple(call.params.values())
        if any(names_node(value, NEWER_NODES) for value in values):
            item.add_marker(pytest.mark.slow)
        if is_left_out(item.path.as_posix(), values):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in {*left_out}]


def pytest_collection_finish() -> None:
    """No test and no module is ever garbage."""
    gc.collect()
    gc.freeze()
