"""Checks give the same results for a redacted recording and for the node."""

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe
from probes.checks.judgment import judge
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Status
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers, row_of
from probes.recording.redaction.tokens import is_known
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.examination import examine
from probes.snapshot.node_reader import NodeReader
from probes.snapshot.verdict import State
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, read
from tests.support.tiers import usual

# Two or three of every area: its files, commands and messages have rules of their own.
FAULTS = """
    module-blacklisted-install module-blacklisted-cmdline kernel-forbids-modules-lockdown
    dkms-build-failed peermem-unknown-symbol-inbox-core peermem-parameter-invalid
    nv-peer-mem-conflict-service dmabuf-kernel-config p2p-topology-refused
    memory-peers-missing-old-nccl acs-on acs-direct-nic iommu-translated pcie-link-degraded-width
    pcie-aspm-on pcie-aer-correctable no-subnet-manager roce-gid-wrong roce-lossless-off
    symbol-errors-rising nic-health-errors monitor-causes-log-flood gpu-without-driver-nouveau
    driver-library-mismatch xid-79-fell-off-bus fabric-manager-down-version memlock-login
    memlock-scheduler nccl-ib-hca-prefix nccl-topo-file-stale nccl-conf-ignored-lines
    nccl-twice-in-process ucx-net-devices-mismatch perftest-without-dmabuf perftest-port-in-use
    pid-namespace-hides-users k8s-mofed-storage-modules broken-site-check
"""
Judged = tuple[State, Maybe[GdrPath | None], dict[str, tuple[Status, Severity, tuple[str, ...]]]]


def judged(moments: list[Moment]) -> Judged:
    examination = examine(ReplayHost(read(archive_of(moments))))
    judgment = judge(examination)
    verdict = judgment.verdict
    results = {check.id: (check.status, check.severity, check.devices) for check in judgment.findings}
    return verdict.state, verdict.path, results


# The values of variables, of tc/*/traffic_class and of module versions, and words of older drivers.
OTHERS = """
    bare-roce+roce-class-of-gpu bare-roce+p2p-topology-refused-old-importer aws-p5+gin-efa-requirements
    pcie-l40s+hybrid-ep-needs-peermem gb300+idle-data-direct
"""
NODES = [*simulated_names(), *(f"hgx-h100+{fault}" for fault in FAULTS.split()), *OTHERS.split()]
# Files, commands, kernel messages, processes: each has rules of its own.
USUAL = ("acs-on", "nv-peer-mem-conflict-service", "xid-79-fell-off-bus", "memlock-login", "roce-gid-wrong")
USUAL_NODES = {"hgx-h100", "gb200", *(f"hgx-h100+{fault}" for fault in USUAL), *OTHERS.split()}


def recorded(name: str) -> list[Moment]:
    """A moment of a node with all that gdrtop reads for its checks."""
    moments: list[Moment] = []
    recorder = RecordingHost(SimulatedHost(name, clock=SteppedClock()), moments.append)
    reader = NodeReader(recorder)
    examine(recorder, reader.probe())
    reader.read()
    recorder.end_moment()
    return moments


@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100", "cloud-vm"}))
def test_each_path_that_gdrtop_reads_has_a_row(name: str) -> None:
    questions = {question for moment in recorded(name) for question in moment.answers}
    paths = {
        question.subject[0] for question in questions if question.kind in ("file", "names", "size", "link")
    }
    without = sorted(path for path in paths if row_of(path) is None)
    assert len(paths) > 100
    assert not without, f"add a row to FILES in probes/recording/redaction/identifiers.py for {without}"


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NODES, USUAL_NODES))
def test_verdict_and_findings_survive_redaction(name: str) -> None:
    moments = recorded(name)
    identifiers = Identifiers(redact=True)
    redacted = [identifiers.apply(moment) for moment in moments]
    plain, masked = judged(moments), judged(redacted)
    changed = [
        f"{check}: {result} became {masked[2][check]}"
        for check, result in plain[2].items()
        if result != masked[2][check]
    ]
    # A word that a check reads and that is missing in probes/recording/redaction/words.txt is one of these.
    unknown = sorted(word for word in identifiers.replaced if not is_known(word))
    assert not changed, f"{changed}; replaced: {unknown}"
    assert masked == plain
