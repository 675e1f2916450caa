"""gdrtop as prolog and health check of a real Slurm, whose slurm.conf is where only SLURM_CONF says."""

from __future__ import annotations

import io
import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from probes.base.unknown import Unknown
from probes.fleet.node_set import slurm_nodes
from probes.host.machine.local import LocalHost
from probes.slurm.slurm_node import SlurmNode, read_node
from tests.support.process_families import wait_for
from tests.tui.commands.slurm.cluster import Cluster, cluster, complaint
from tui.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(complaint()), reason=complaint())]
REASON = "drained|gdrtop: peermem-not-loaded nvidia_peermem"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    text = io.StringIO()
    with redirect_stdout(text):
        assert main(["--demo", "hgx-h100", "manifest", "slurm-prolog"]) == 0
    # As root, gdrtop takes no slurm.conf from below a directory in which others can write, as in /tmp.
    with (
        tempfile.TemporaryDirectory(prefix="gdrtop-test-", dir="/run") as directory,
        cluster(Path(directory), text.getvalue()) as found,
    ):
        yield found


def test_a_healthy_node_runs_jobs(slurm: Cluster) -> None:
    slurm.simulate("whole", "hgx-h100")
    wait_for(slurm.submit("whole", 1).exists)
    assert slurm.node("whole").endswith("|none")


def test_a_broken_node_is_drained_and_resumed_after_the_repair(slurm: Cluster) -> None:
    slurm.simulate("whole", "hgx-h100+no-gdr-path")
    done = slurm.submit("whole", 1)
    wait_for(lambda: slurm.node("whole") == REASON)
    assert not done.exists()
    slurm.simulate("whole", "hgx-h100")
    checked = slurm.directory / "whole.checked"
    checked.touch()
    try:
        wait_for(lambda: slurm.node("whole").endswith("|none"))
    finally:
        checked.unlink()
    wait_for(slurm.submit("whole", 1).exists)  # Slurm waits two minutes before it starts the requeued one


def test_a_gdrtop_that_is_killed_stops_no_job(slurm: Cluster) -> None:
    slurm.simulate("whole", "killed")
    wait_for(slurm.submit("whole", 1).exists)
    assert slurm.node("whole").endswith("|none")


def test_a_job_gets_the_gpus_that_gres_conf_names(slurm: Cluster) -> None:
    """/dev/nvidia5 is lost; it is the second of [4-7]."""
    slurm.simulate("half", "hgx-h100+xid-79-fell-off-bus")
    wait_for(slurm.submit("half", 1).exists)
    done = slurm.submit("half", 2)
    wait_for(lambda: slurm.node("half") == "drained|gdrtop: xid-79-fell-off-bus 0000:9b:00.0")
    assert not done.exists()


def test_a_repair_in_slurms_own_words(slurm: Cluster) -> None:
    """Drain beside a running job, wait for it, return: by the real scontrol, sinfo and squeue."""
    ours = "gdrtop repair: peermem-not-loaded nvidia_peermem"

    def repair(*options: str) -> tuple[int, dict[str, Any]]:
        ended = slurm.run("gdrtop", "repair", *options, SLURMD_NODENAME="whole")
        return ended.returncode, json.loads(ended.stdout) if "--json" in options else {}

    def states() -> dict[str, str]:
        return {step["id"]: f"{step['state']}: {step['reason']}" for step in repair("--json")[1]["steps"]}

    slurm.simulate("whole", "hgx-h100")
    slurm.run("scontrol", "update", "NodeName=whole", "State=RESUME")
    job = slurm.run(
        "sbatch", "--parsable", "-w", "whole", "-o", "/dev/null", "--wrap", "sleep 300"
    ).stdout.strip()
    wait_for(lambda: slurm.run("squeue", "-h", "-j", job, "-o", "%T").stdout == "RUNNING\n")
    slurm.simulate("whole", "hgx-h100+no-gdr-path")
    slurm.run("gdrtop", "health-check", SLURMD_NODENAME="whole")
    assert slurm.node("whole") == REASON.replace("drained", "draining")
    assert states()["drain"].startswith("to do: ")
    assert repair("--next", "--yes")[0] == 0
    assert slurm.node("whole") == f"draining|{ours}"
    assert states()["wait"].startswith(f"to do: 1 job left: {job} (root, RUNNING, ")
    assert repair("--next", "--yes")[0] == 2  # nothing ends the job
    assert slurm.run("squeue", "-h", "-j", job, "-o", "%T").stdout == "RUNNING\n"
    slurm.run("scancel", job)
    wait_for(lambda: slurm.node("whole") == f"drained|{ours}")
    assert states()["act"].startswith("to do: ")
    slurm.run("scontrol", "update", "NodeName=whole", "State=DOWN", f"Reason={ours}")  # rebooted by hand
    slurm.simulate("whole", "hgx-h100")
    slurm.run("gdrtop", "health-check", SLURMD_NODENAME="whole")  # it would return it unmeasured
    assert slurm.node("whole").endswith(f"|{ours}")
    now = states()
    assert now["drain"].startswith("done: ")
    assert (now["act"], now["wait"]) == ("done: nothing is left to fix", "done: no job runs")
    assert now["return"].startswith("blocked: waiting for: Measure ")
    assert repair("--next", "--yes", "--anyway", "a test")[0] == 0
    wait_for(lambda: slurm.node("whole") == "idle|none")
    assert repair("--json")[1]["steps"] == []


def test_slurm_is_asked_where_slurm_conf_says(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(read_node(LocalHost("/"), "spare"), Unknown)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    assert slurm_nodes(LocalHost("/"), "gpu") == ("half", "whole")
    spare = read_node(LocalHost("/"), "spare")  # in no partition
    assert isinstance(spare, SlurmNode)
    assert not spare.is_draining
    slurm.run("scontrol", "update", "NodeName=spare", "State=DRAIN", "Reason=gdrtop: a b")
    spare = read_node(LocalHost("/"), "spare")
    assert isinstance(spare, SlurmNode)
    assert (spare.is_draining, spare.reason) == (True, "gdrtop: a b")


def test_a_silent_controller_keeps_no_prolog(slurm: Cluster) -> None:
    slurm.simulate("whole", "hgx-h100+no-gdr-path")
    controller = slurm.daemons["slurmctld -c"]
    controller.send_signal(signal.SIGSTOP)
    try:
        ended = slurm.run("gdrtop", "prolog", SLURM_JOB_GPUS="0", SLURM_JOB_ID="1", SLURMD_NODENAME="whole")
    finally:
        controller.send_signal(signal.SIGCONT)
    assert ended.returncode == 1
    assert "the state of whole in Slurm is unknown: sinfo: " in ended.stderr
