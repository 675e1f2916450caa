"""`gdrtop check --for nfd`: what Node Feature Discovery reads, as labels of the Kubernetes node."""

import io
import re
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.checks.judgment import judge
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import assess
from probes.topology.paths import build
from tests.support.doctor import examination_of
from tests.support.tiers import USUAL_NODES
from tui.cli import main
from tui.commands.check import CheckOptions, write_check
from tui.commands.consumers.node_labels import write_labels

HGX = "hgx-h100"


def labels_in(text: str, now: float = 1000.0) -> dict[str, str]:
    """The labels that NFD makes of a feature file (source/local/local.go, parseFeatureFile)."""
    assert len(text.encode()) <= 65536
    labels: dict[str, str] = {}
    expiry = now
    for line in filter(None, map(str.strip, text.split("\n"))):
        if line.startswith("# +"):
            key, _, value = line.removeprefix("# +").partition("=")
            assert key == "expiry-time"
            expiry = datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        elif not line.startswith("#") and expiry >= now:
            key, equals, value = line.partition("=")
            assert equals
            assert re.fullmatch(r"gdrtop\.io/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", key)
            assert re.fullmatch(r"(?=.{1,63}\Z)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value, re.ASCII)
            labels[key.removeprefix("gdrtop.io/")] = value
    return labels


def text_of(examination: Examination, status: int = 0) -> str:
    out = io.StringIO()
    assert write_labels(examination, judge(examination), out) == status
    return out.getvalue()


def labels_of(name: str) -> dict[str, str]:
    examination = examination_of(name)
    return labels_in(text_of(examination), examination.taken_at)


def test_labels_say_what_the_verdict_says() -> None:
    labels = labels_of("dgx-a100")
    verdict = judge(examination_of("dgx-a100")).verdict
    assert labels["path"] == "peermem"
    assert labels["gpus-direct"] == str(verdict.gpus_served) == "8"
    assert labels["nics-direct"] == str(verdict.nics)
    assert (labels["gpu0-nic"], labels["gpu0-nic-path"]) == ("mlx5_0", "PIX")
    assert labels["gpu1-nic"] == "mlx5_1"  # as near as mlx5_0, which GPU0 has


def test_the_path_is_that_of_new_jobs_and_not_of_a_running_one() -> None:
    assert "peermem" in judge(examination_of(HGX)).verdict.reason  # a job registered memory by it
    assert labels_of(HGX)["path"] == "dmabuf"


def test_a_gpu_that_loses_its_nic_loses_its_label() -> None:
    before, after = labels_of("hgx-b200"), labels_of("hgx-b200+port-down")
    lost = {name for name in before if name not in after}
    assert len(lost) == 2
    assert all(name.endswith(("-nic", "-nic-path")) for name in lost)
    assert int(after["gpus-direct"]) == int(before["gpus-direct"]) - 1


def test_a_broken_node_uses_host_memory_and_names_no_nic() -> None:
    labels = labels_of("dgx-a100+no-gdr-path")
    assert labels == {"path": "host", "gpus-direct": "0", "nics-direct": "0"}


@pytest.mark.parametrize("name", [*USUAL_NODES, "dgx-spark"])
def test_nothing_unknown_becomes_a_label(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without labels, nothing is printed, and the file of the check before stays until it expires."""
    status = main(["check", "--for", "nfd", "--demo", name])
    printed = capsys.readouterr()
    if name in ("cloud-vm", "dgx-spark"):
        word = "UNKNOWN" if name == "cloud-vm" else "NOT APPLICABLE"
        assert (status, printed.out) == (3, "")
        assert f"no labels: the verdict is {word}" in printed.err
    else:
        assert status == 0
        assert labels_in(printed.out, now=0.0)["path"] in ("dmabuf", "peermem", "efa", "cxi", "host")
        assert f"SIMULATED node {name}" in printed.out


def test_what_a_job_has_set_itself_changes_no_label() -> None:
    found = {}
    for name in (HGX, f"{HGX}+nccl-gdr-level-off"):
        out = io.StringIO()
        assert write_check(SimulatedHost(name, clock=lambda: 1000.0), out, CheckOptions(consumer="nfd")) == 0
        found[name] = labels_in(out.getvalue())
    first, second = found.values()
    assert first == second


def test_a_name_that_no_label_can_hold_is_left_out() -> None:
    examination = examination_of("hgx-b200")
    rdma = examination.node.rdma
    assert isinstance(rdma, RdmaFacts)
    direct = examination.node.gpudirect
    assert isinstance(direct, GpuDirectFacts)
    names = {"mlx5_4": "bad:name"}
    devices = tuple(replace(device, name=names.get(device.name, device.name)) for device in rdma.devices)
    direct = replace(
        direct,
        nic_dmabuf={names.get(name, name): answer for name, answer in direct.nic_dmabuf.items()},
        nic_peermem={names.get(name, name): answer for name, answer in direct.nic_peermem.items()},
    )
    node = replace(examination.node, rdma=replace(rdma, devices=devices), gpudirect=direct)
    topology = build(node)
    usability = assess(node, topology, None)
    assert usability.nics[topology.gpus[0].id] == ("bad:name",)
    odd = replace(examination, node=node, topology=topology, usability=usability)
    labels = labels_in(text_of(odd), odd.taken_at)
    assert "gpu0-nic" not in labels
    assert labels["gpu1-nic"] == "mlx5_5"


@given(st.text(max_size=80))
@settings(max_examples=15)
def test_no_name_of_a_node_adds_a_line(word: str) -> None:
    examination = examination_of(HGX)
    platform = examination.node.platform
    odd = replace(examination.node, origin=examination.node.origin._replace(label=word))
    assert platform is odd.platform
    labels = labels_in(text_of(replace(examination, node=odd)), examination.taken_at)
    assert labels == labels_of(HGX)


def test_labels_expire_unless_they_are_written_again() -> None:
    examination = examination_of(HGX)
    text, at = text_of(examination), examination.taken_at
    assert labels_in(text, now=at + 899)
    assert labels_in(text, now=at + 901) == {}


@pytest.mark.parametrize("taken_at", [float("nan"), float("inf"), -1e30, 1e30])
def test_a_clock_that_shows_no_time_gives_no_labels(
    taken_at: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text_of(replace(examination_of(HGX), taken_at=taken_at), status=3) == ""
    assert "clock" in capsys.readouterr().err
