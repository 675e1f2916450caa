"""Every command says the same of a node: check, topo, the dashboard, JSON and the exit status.

The tests loop over nodes and faults, because each of them judges what the one before has examined.
"""

import json
import re
from collections.abc import Iterator

import pytest

from probes.bandwidth.model.limits import limit_of_pair
from probes.base.evidence import Severity
from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment, conclude, exit_status, judge, with_severity
from probes.facts.rdma.devices import RdmaFacts
from probes.simulation.bandwidth.speeds import Place, sustained
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State, Verdict
from probes.topology.nccl_paths import Nccl
from tests.support.doctor import examination_of, findings_on
from tests.support.tiers import USUAL_FAULTS, USUAL_NODES
from tui.cli import main
from tui.commands.check import check_json
from tui.commands.topo import topology_json
from tui.runtime.reading_thread import Probed, Sampled
from tui.screens.head import HeadState
from tui.screens.overview.state import OverviewState
from widgets.base.lines import Tone
from widgets.node.verdict import draw

NODES = (*SIMULATED_NAMES, *(f"{fault.on}+{fault.name}" for fault in FAULTS.values()))
USUAL = (*USUAL_NODES, *(f"{FAULTS[name].on}+{name}" for name in sorted(USUAL_FAULTS)))
ON_EACH = pytest.mark.parametrize("nodes", [USUAL], ids=["usual"])
GREEN = (State.ACTIVE, State.READY)


def judgment_on(name: str) -> Judgment:
    return judge(examination_of(name))


def verdict_on(name: str) -> Verdict:
    return judgment_on(name).verdict


@pytest.mark.slow
@ON_EACH
def test_the_dashboard_and_json_say_what_check_says(nodes: tuple[str, ...]) -> None:
    for name in nodes:
        examination, found = examination_of(name), tuple(findings_on(name).values())
        node, topology, reading = examination.node, examination.topology, examination.reading
        verdict = verdict_on(name)
        state = OverviewState()
        state.apply(Probed(node, topology))
        judgment = judgment_on(name)
        state.apply(Sampled(reading, judgment, 0.0))
        state.apply_check(examination, judgment)
        assert state.verdict == verdict, name
        words = {
            state.verdict.state.value,
            check_json(node, 0.0, verdict, found)["verdict"]["state"],
            topology_json(node, topology, judgment, 0.0)["verdict"]["state"],
        }
        assert len(words) == 1, name


@pytest.mark.slow
@ON_EACH
def test_the_line_never_hides_a_finding_and_the_exit_status_fits_it(nodes: tuple[str, ...]) -> None:
    for name in nodes:
        found, verdict = findings_on(name).values(), verdict_on(name)
        critical, warnings = with_severity(found, Severity.CRITICAL), with_severity(found, Severity.WARNING)
        line = draw(verdict, key="d")
        text = "".join(run.text for run in line)
        assert (f"{len(critical)} critical" in text) == bool(critical), name
        assert (f"{len(warnings)} warning" in text) == bool(warnings), name
        notes = with_severity(found, Severity.NOTE)
        assert (f"{len(notes)} note" in text) == bool(notes), name
        assert text.endswith(" (d)") == bool(critical or warnings or notes), name
        is_green = line[0].tone is Tone.GOOD
        assert is_green == (verdict.state in GREEN), name
        assert not (is_green and critical), name
        assert not (is_green and any(warning.data_path for warning in warnings)), name
        status = exit_status(verdict)
        if verdict.state in (State.UNKNOWN, State.NOT_APPLICABLE):
            assert status in (2, 3), name
        elif verdict.state is State.BROKEN or critical:
            assert status == 2, name
        else:
            assert status == (1 if warnings or not is_green else 0), name


@pytest.mark.slow
@ON_EACH
def test_the_reason_of_a_broken_node_names_nothing_twice(nodes: tuple[str, ...]) -> None:
    absent = [f"hgx-h100+{name}" for name in ("mlx5-core-not-loaded", "dmabuf-kernel-too-old")]
    for name in (*nodes, *absent):
        verdict = verdict_on(name)
        if verdict.state is State.BROKEN:
            title, _, rest = verdict.reason.partition(". ")
            named = set(re.findall(r"DMA-BUF|peer memory|\w+_\w+", title))
            assert not named & set(re.findall(r"DMA-BUF|peer memory|\w+_\w+", rest)), verdict.reason


def shares(examination: Examination) -> Iterator[tuple[str, float]]:
    """What a bandwidth test between each GPU and its best NIC reaches of its limit.

    A GPU without a NIC below its switch sends by PXN, through another GPU and its NIC: no test of a pair of
    its own stands for it.
    """
    rdma = examination.node.rdma
    here = {device.name for device in rdma.devices} if isinstance(rdma, RdmaFacts) else set()
    topology = examination.topology
    for gpu in topology.gpus:
        best = [nic for nic in topology.best_nics[gpu.id][:1] if nic in here]
        by_pxn = Nccl.PXN in [topology.paths[gpu.id, nic].nccl for nic in here]
        for nic in best:
            if by_pxn and topology.paths[gpu.id, nic].nccl not in (Nccl.PIX, Nccl.PXB, Nccl.P2C):
                continue
            limit = limit_of_pair(examination, gpu.id, nic, 1, False).gbps
            place = Place(examination, nic, 1, gpu.id)
            gbps = min(sustained(place, nic_reads, False) for nic_reads in (False, True))
            if not isinstance(limit, Unknown):
                yield f"{gpu.label} {nic}", gbps / limit


@pytest.mark.slow
@ON_EACH
def test_nothing_green_is_slower_than_four_fifths_of_its_limit(nodes: tuple[str, ...]) -> None:
    slow = [
        (name, pair, round(share, 2))
        for name in nodes
        if verdict_on(name).state in GREEN
        for pair, share in shares(examination_of(name))
        if share < 0.8
    ]
    assert not slow


def test_where_the_bandwidth_is_right_the_verdict_is_green() -> None:
    """The other side of the test before: it does not pass because nothing is green."""
    assert verdict_on("hgx-h100").state is State.ACTIVE
    assert all(share > 0.8 for _, share in shares(examination_of("hgx-h100")))
    assert all(share < 0.8 for _, share in shares(examination_of("hgx-h100+acs-on")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["hgx-h100", "hgx-h100+acs-on", "dgx-a100+no-gdr-path", "cloud-vm", "pcie-l40s+geforce-no-gdr"]
)
def test_the_commands_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", "--demo", name, "--json"])
    checked = json.loads(capsys.readouterr().out)["verdict"]
    main(["topo", "--demo", name, "--json"])
    assert json.loads(capsys.readouterr().out)["verdict"]["state"] == checked["state"]
    assert status == exit_status(verdict_on(name))
    assert checked["state"] == verdict_on(name).state.value


@pytest.mark.parametrize("name", ["hgx-h100", "hgx-h100+acs-on", "gb200"])
def test_before_the_checks_ran_no_word_is_green(name: str) -> None:
    examination = examination_of(name)
    state = OverviewState()
    state.apply(Probed(examination.node, examination.topology))
    unchecked = Judgment(conclude(examination.usability, None))
    state.apply(Sampled(examination.reading, unchecked, 0.0))
    head = HeadState(examination.node.origin, **state.head_fields())  # type: ignore[arg-type]
    runs = [run for line in (head.sentence, *head.verdicts) for run in line]
    assert not any(run.tone is Tone.GOOD for run in runs)
    assert "checking…" in "".join(run.text for run in head.verdicts[0])
    state.apply_check(examination, Judgment(conclude(examination.usability, ())))
    checked = HeadState(examination.node.origin, **state.head_fields())  # type: ignore[arg-type]
    assert "checking…" not in "".join(run.text for run in checked.verdicts[0])


@pytest.mark.slow
def test_the_same_holds_with_every_fault() -> None:
    """One test, because each examines all nodes unless another one has in the same process."""
    test_the_dashboard_and_json_say_what_check_says(NODES)
    test_the_line_never_hides_a_finding_and_the_exit_status_fits_it(NODES)
    test_the_reason_of_a_broken_node_names_nothing_twice(NODES)
    test_nothing_green_is_slower_than_four_fifths_of_its_limit(NODES)
