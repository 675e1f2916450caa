"""Tables that end with the newest version that gdrtop knows: of a newer one, it says so, without a guess."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from probes.checks.nccl.engines import _NEWEST_NVSHMEM, _NEWEST_READ
from probes.checks.registry import findings
from probes.checks.system.combinations import _NEWEST_BRANCH
from probes.facts.pci.functions import generation, link_gbps
from probes.facts.system.packages import Distribution, parse_distribution
from probes.live.ras.targets import RasJob, RasUse, decide
from probes.nccl.log.grammar import distance_word
from probes.nccl.variables.catalogue import NEWEST, newest, parameters, parse_version
from probes.plans.packages import _DOCA_PACKAGES, _RELEASES, KNOWN_RELEASES, ofed_steps, open_driver_steps
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.snapshot.examination import examine
from tui.commands.env import EnvOptions, write_environment

_ROOT = Path(__file__).resolve().parents[1]
_SITE = "/opt/venv/lib/python3.12/site-packages"
# os-release of a distribution of NVIDIA's repository, by the begin of its name.
_IDS = {"azl": "azurelinux"}


def after(version: tuple[int, ...]) -> str:
    """The version after the newest, as text."""
    return ".".join(map(str, (*version[:-1], version[-1] + 1)))


def env(node: str, nccl: str) -> str:
    out = io.StringIO()
    write_environment(SimulatedHost(node, clock=lambda: 1000.0), out, EnvOptions(nccl=nccl))
    return out.getvalue()


def cause_of(check: str, node: str, *libraries: str, package: str = "", **variables: str) -> str:
    host = SimulatedHost(node, clock=lambda: 1000.0)
    add_rank(host.tree, 46000, 0, variables, libraries)
    if package:
        host.tree.add(f"/proc/46000/root{_SITE}/{package}.dist-info/METADATA", "")
    (finding,) = findings(examine(host), only={check})
    return finding.cause


def nccl_of_a_node() -> None:
    known, newer = ".".join(map(str, NEWEST)), after(NEWEST)
    for node in ("hgx-h100", "bare-roce"):
        assert "newest" not in env(node, known)
        text = " ".join(env(node, newer).split())
        assert f"newer than {known}, the newest that gdrtop knows" in text
        assert "defaults are right" not in text


def ras_of_a_job() -> None:
    known, newer = ".".join(map(str, NEWEST)), after(NEWEST)
    for version, is_named in ((f"{known}.7", False), (f"{newer}.3", True)):
        warnings = " ".join(decide([RasJob("train.py", version, 3600.0)], RasUse.ONCE).warnings)
        assert ("the newest that gdrtop knows" in warnings) == is_named


def distances_of_a_log() -> None:
    assert distance_word((*NEWEST, 7), 5) is not None
    assert distance_word((NEWEST[0], NEWEST[1] + 1, 0), 5) is None


def driver_of_a_grace_node() -> None:
    """tests/probes/checks/system/test_combinations.py has a newer one."""
    assert _NEWEST_BRANCH >= 620


def mooncake_of_a_job() -> None:
    newer = after(_NEWEST_READ[:3])
    for version, word in (("0.3.12.post1", "It registers"), (newer, "It likely registers")):
        text = cause_of(
            "mooncake-needs-peermem",
            "pcie-l40s",
            f"{_SITE}/mooncake/engine.so",
            package=f"mooncake_transfer_engine-{version}",
        )
        assert word.lower() in text.lower(), (version, text)


def nvshmem_of_a_job() -> None:
    known = ".".join(map(str, _NEWEST_NVSHMEM))
    for version, word in ((known, "IBGDA works"), (after(_NEWEST_NVSHMEM), "IBGDA likely works")):
        host = f"/usr/lib64/libnvshmem_host.so.{version}"
        transport = "/usr/lib64/nvshmem_transport_ibgda.so.3.0.0"
        assert word in cause_of("nvshmem-ibgda-without-mlx5", "aws-p5", host, transport)


def pcie_of_a_link() -> None:
    """PCIe 7.0: 128 GT/s and flits, as 6.0 has. gdrtop names no generation, and expects no more than that."""
    assert generation(128.0) is None
    assert link_gbps(128.0, 16) == 2 * link_gbps(64.0, 16)


# A constant whose name says that it is the newest of something, and the test of what is newer.
_TABLES: dict[str, Callable[[], None]] = {
    "probes/nccl/variables/catalogue.py NEWEST": nccl_of_a_node,
    "probes/checks/nccl/engines.py _NEWEST_READ": mooncake_of_a_job,
    "probes/checks/nccl/engines.py _NEWEST_NVSHMEM": nvshmem_of_a_job,
    "probes/checks/system/combinations.py _NEWEST_BRANCH": driver_of_a_grace_node,
    "probes/facts/pci/functions.py _NEWEST_GENERATION": pcie_of_a_link,
    "RAS": ras_of_a_job,
    "distances": distances_of_a_log,
}
_OTHERS = re.compile(r"log\.py|probe_thread\.py|conditions\.py|reading\.py")  # the newest lines, not versions


@pytest.mark.parametrize("table", _TABLES)
def test_a_version_after_the_newest_is_called_newer(table: str) -> None:
    _TABLES[table]()


@pytest.mark.slow
def test_each_newest_version_has_such_a_test() -> None:
    found = set()
    for folder in ("probes", "widgets", "tui"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                targets = node.targets if isinstance(node, ast.Assign) else []
                names = [
                    name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
                ]
                found |= {
                    f"{path.relative_to(_ROOT)} {name.id}"
                    for name in names
                    if "NEWEST" in name.id and not _OTHERS.search(path.name)
                }
    assert not found - set(_TABLES), "test what gdrtop says of a newer version, and add the test to _TABLES"


def test_the_list_of_variables_ends_with_the_newest_source_that_was_read() -> None:
    assert parse_version(newest())[:2] <= NEWEST
    assert all(
        parse_version(parameter.last) <= parse_version(newest()) for parameter in parameters().values()
    )


@pytest.mark.parametrize("key", _RELEASES)
def test_a_release_after_the_newest_of_a_distribution_gets_no_guessed_command(key: str) -> None:
    number = int(re.sub(r"\D", "", _RELEASES[key][-1]))
    for version in (number + 1, number + 100):
        text = f"{version // 100}.{version % 100:02}" if key == "ubuntu" else str(version)
        os_release = f'ID={_IDS.get(key, key)}\nVERSION_ID="{text}"\nPRETTY_NAME="New {text}"\n'
        distribution: Distribution = parse_distribution(os_release)
        examination = replace(examine(SimulatedHost("hgx-h100")), distribution=distribution)
        steps = (*open_driver_steps(examination), *ofed_steps(examination))
        commands = " ".join(" ".join(step.argv) for step in steps)
        assert "://" not in commands
        said = " ".join(step.why for step in steps)
        assert "as described at" in said
        assert f"gdrtop knows the commands of {', '.join(_RELEASES[key])}." in said


def test_packages_of_doca_are_those_of_known_releases() -> None:
    assert {release for release, _ in _DOCA_PACKAGES} <= set(KNOWN_RELEASES)
