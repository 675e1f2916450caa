"""The rows of the Jobs panel."""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.facts.jobs.processes import ProcessFacts, probe
from probes.facts.node import probe_node
from probes.host.nvml import NvmlLive
from probes.queries.jobs import far_from_gpu
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import FIRST_RANK
from widgets.base.lines import plain
from widgets.node import jobs

FAR_RANK = FIRST_RANK + 7  # its GPU is on the second NUMA node


def facts_of(host: SimulatedHost) -> ProcessFacts:
    facts = probe(host)
    assert isinstance(facts, ProcessFacts)
    return facts


def gpus_of(host: SimulatedHost) -> dict[str, NvmlLive]:
    live = host.nvml_live()
    assert not isinstance(live, Unknown)
    return {gpu.bdf: gpu for gpu in live}


def test_a_job_shows_its_cpus_and_memory() -> None:
    host = SimulatedHost("hgx-h100")
    row = plain(jobs.draw(facts_of(host), {}, 200)[0])
    assert "train.py (alice, Slurm job 4711, 8 processes)" in row
    assert "16 CPUs busy, 144 GiB" in row
    assert "far" not in row


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
    assert "1 bound to CPUs far from the GPU" in plain(jobs.draw(facts, {}, 200, far)[0])
