"""The jobs on the overview."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import listed
from probes.checks.registry import findings
from probes.facts.jobs.processes import ProcessFacts, probe
from probes.facts.node import probe_node
from probes.host.nvml import NvmlLive
from probes.queries.finding import Finding, Status
from probes.queries.jobs import far_from_gpu
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import FIRST_RANK
from probes.snapshot.examination import examine
from tests.support.live_samples import a_job, a_sample
from tui.runtime.node_monitor import NodeMonitor
from widgets.base.lines import Tone, plain
from widgets.live import job_lines
from widgets.live.order import FINE, badness_of_devices

FAR_RANK = FIRST_RANK + 7  # its GPU is on the second NUMA node


def facts_of(host: SimulatedHost) -> ProcessFacts:
    facts = probe(host)
    assert isinstance(facts, ProcessFacts)
    return facts


def gpus_of(host: SimulatedHost) -> dict[str, NvmlLive]:
    live = host.nvml_live()
    assert not isinstance(live, Unknown)
    return {gpu.bdf: gpu for gpu in live}


def drawn(host: SimulatedHost, far: Collection[int] = ()) -> list[str]:
    monitor = NodeMonitor(host)
    monitor.read()
    lines = job_lines.draw_overview(monitor.sample, facts_of(host), {}, 200, far)
    return [plain(line) for line in lines]


def test_a_job_shows_its_cpus_and_memory() -> None:
    name, row = drawn(SimulatedHost("hgx-h100"))
    assert name == "● train.py (alice, Slurm job 4711)"
    assert "8 of 32 ranks" in row
    assert "16 CPUs busy, 144 GiB" in row
    assert "far" not in row


def test_a_job_whose_paths_are_unknown_is_shown_with_the_reason() -> None:
    name, row = drawn(SimulatedHost("slingshot"))[:2]
    assert name == "? train.py (alice, Slurm job 4711)"
    assert row.startswith("  unknown on all 4 ranks (the kernel does not list RDMA resources)")
    assert "8.0 CPUs busy, 72 GiB" in row


def test_without_a_sample_or_processes_the_panel_says_so() -> None:
    assert [plain(line) for line in job_lines.draw_overview(None, None, {}, 80)] == ["reading…"]
    sample = a_sample(processes=Unknown(Reason.NEEDS_ROOT, "/proc"))
    assert plain(job_lines.draw_overview(sample, None, {}, 80)[0]).startswith(
        "Processes are unknown (needs root"
    )
    assert plain(job_lines.strip(sample, 80)).startswith("Jobs unknown (needs root")


def test_a_job_bound_to_cpus_far_from_its_gpu_is_marked() -> None:
    host = SimulatedHost("hgx-h100")
    node = probe_node(host)
    assert far_from_gpu(node, facts_of(host), gpus_of(host)) == ()
    status = str(host.read(f"/proc/{FAR_RANK}/status"))
    first = str(host.read(f"/proc/{FIRST_RANK}/status")).rpartition("\t")[2]
    host.tree.add(f"/proc/{FAR_RANK}/status", f"{status.rpartition(chr(9))[0]}\t{first}\n")
    facts = facts_of(host)
    far = far_from_gpu(node, facts, gpus_of(host))
    assert far == (FAR_RANK,)
    assert "1 bound to CPUs far from the GPU" in drawn(host, far)[1]


def test_a_silent_job_is_not_green() -> None:
    sample = a_sample()
    (job,) = sample.jobs
    silent = replace(sample, jobs=(replace(job, silent_seconds=190.0),))
    for width in (80, 120):
        line = job_lines.job_line(silent.jobs[0], silent, width)
        assert "no traffic for 3 min 10 s" in plain(line)
        assert line[0].tone is not Tone.GOOD
        panel = "\n".join(map(plain, job_lines.draw_overview(silent, None, {}, 58)))
        assert "no traffic for 3 min 10 s" in panel
    assert job_lines.job_line(job, sample, 120)[0].tone is Tone.GOOD


def test_a_job_has_the_problems_of_the_pcie_links_of_its_nics() -> None:
    job = a_job()
    finding = Finding("x", "pcie", Severity.WARNING, Status.FOUND, "A link is slow", (), "", None, "")
    found = (replace(finding, devices=("0000:1a:00.0",), data_path=True),)
    sample = a_sample(jobs=(job,), findings=found, nic_names={"0000:1a:00.0": job.nics[0]})
    head, line = map(plain, job_lines.draw_verdicts(sample, 100, 4))
    assert head.startswith("▲ ")
    assert line == f"  ▲ A link is slow: {job.nics[0]}."
    assert badness_of_devices(sample)[job.nics[0]] < FINE
    others = replace(sample, nic_names={"0000:1a:00.0": "mlx5_99"})
    assert len(job_lines.draw_verdicts(others, 100, 4)) == 1


def test_a_job_whose_own_setting_costs_bandwidth_is_not_green() -> None:
    """Also where the setting has its cause in a port that the job does not use."""
    findings_of_node = listed(findings(examine(SimulatedHost("hgx-h100+port-down"))))
    job = a_job()
    sample = a_sample(jobs=(replace(job, pids=(41000,)),), findings=findings_of_node)
    head, line = map(plain, job_lines.draw_verdicts(sample, 100, 4))
    assert head.startswith("▲ ")
    assert line == "  ▲ An RDMA port has no link: mlx5_1."
    others = replace(sample, jobs=(replace(job, pids=(9,), gpus=(), nics=("mlx5_0",)),))
    assert plain(job_lines.draw_verdicts(others, 100, 4)[0]).startswith("● ")


def test_problems_share_the_rows_and_the_rest_is_counted() -> None:
    job = a_job()
    finding = Finding("x", "jobs", Severity.WARNING, Status.FOUND, "title", (), "", None, "")
    causes = [f"{name} {'long ' * 30}end." for name in ("First", "Second", "Third")]
    found = tuple(replace(finding, id=cause[:5], cause=cause, jobs=(job.name,)) for cause in causes)
    sample = a_sample(jobs=(job,), findings=found)
    lines = [plain(line).strip() for line in job_lines.problem_lines(job, sample, 80, 4)]
    assert [line[:8] for line in lines] == ["▲ First ", "long lon", "▲ Second", "▲ Third "]
    assert all(line.endswith("…") for line in lines[1:])
    lines = [plain(line).strip() for line in job_lines.problem_lines(job, sample, 80, 2)]
    assert lines[1] == "and 2 more problems: see the doctor"
    (cut,) = job_lines.problem_lines(job, sample, 80, 1)
    assert plain(cut).endswith("…")
