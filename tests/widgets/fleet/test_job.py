"""The drawing of a job over several nodes: the answer first, the worst ranks first, at any width."""

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.fleet.job_model import FleetJob
from probes.live.model.sample import PathJudgment, PathWord
from tests.support.fleet_samples import NODES, changed, watched
from tui.runtime.printing import ascii_text
from widgets.base.lines import plain, width_of
from widgets.fleet.job import draw

STAGED = changed("gpu3", 2, path=PathJudgment(PathWord.STAGED))
DENIED = Unknown(Reason.NEEDS_ROOT)


def stops(node: str, port: int, at: float) -> float:
    return 370.0 if at < 3 else 0.0


JOBS = {
    "healthy": watched(),
    "staged": watched(1, parts=STAGED),
    "slow rail": watched(rate=lambda node, number, at: 120.0 if number == 3 else 370.0),
    "hang": watched(14, stops),
    "unknown": watched(1, lambda *_: DENIED, parts=changed("gpu1", 0, rank=DENIED, state=DENIED, gpus=())),
    "unanswered": replace(
        watched(1, nodes=NODES[:2]),
        unanswered={
            "gpu7": "no answer for 12 s",
            "gpu8": "no answer for 12 s",
            "gpu9": "ssh: no route to host",
        },
        absent={f"login{number}": "no process of this job" for number in range(9)},
        missing_ranks="16-31",
        other_jobs=("other (bob)",),
    ),
    "no ranks": FleetJob("", "4711", absent={"gpu1": "no process of this job"}, other_jobs=("other (bob)",)),
    "nothing": FleetJob("", "", unanswered={"gpu1": "no answer for 60 s"}),
}


def text_of(job: FleetJob, width: int = 100, most_rows: int = 64) -> list[str]:
    return [plain(line) for line in draw(job, width, most_rows)]


@pytest.mark.parametrize("name", JOBS)
def test_every_line_fits_and_has_an_ascii_form(name: str) -> None:
    for width in (60, 72, 80, 100, 120, 200):
        lines = draw(JOBS[name], width)
        assert all(width_of(line) <= width for line in lines)
        shown = "\n".join(map(plain, lines))
        assert ascii_text(shown).count("?") == shown.count("?")


def test_the_first_line_is_the_answer() -> None:
    assert text_of(JOBS["healthy"], 200)[0] == (
        "train.py (alice, Slurm job 4711) · 32 ranks on 4 nodes · "
        "likely GDR (DMA-BUF) on all 32 ranks · 11.84 Tb/s"
    )
    assert "staged on rank 18" in text_of(JOBS["staged"], 200)[0]
    assert text_of(JOBS["staged"], 200)[0].endswith("1 problem")


def test_the_rank_that_differs_is_the_first_row_at_any_width() -> None:
    for width in (60, 100):
        lines = text_of(JOBS["staged"], width)
        head = next(number for number, line in enumerate(lines) if line.startswith("node"))
        assert lines[head + 1].split()[:4] == ["gpu3", "18", "GPU2", "staged"]
        assert len(lines) - head - 1 == 32
        assert any(line.startswith("▲ Rank 18 on gpu3 copies") for line in lines[:head])


def test_of_many_ranks_the_worst_are_shown_and_the_rest_counted() -> None:
    lines = text_of(JOBS["staged"], most_rows=4)
    assert lines[-1] == "  28 more ranks (--all lists every rank)"
    assert lines[-5].split()[0] == "gpu3"


def test_a_hang_says_what_is_known_of_its_order() -> None:
    text = " ".join(text_of(JOBS["hang"], 200))
    assert "No port of this job has moved data for 11 s. It hangs, computes or writes a checkpoint." in text
    assert "Which port fell silent first is unknown: all 32 ports stopped within 1.0 s" in text


def test_nodes_that_do_not_answer_are_grouped_by_reason() -> None:
    lines = text_of(JOBS["unanswered"])
    assert "▲ 2 nodes do not answer: gpu7, gpu8 (no answer for 12 s)" in lines
    assert "▲ 1 node does not answer: gpu9 (ssh: no route to host)" in lines
    assert "▲ No node shows ranks 16-31 of 16" in lines
    assert "9 nodes show no rank: login0, login1, login2 and 6 more (no process of this job)" in lines


def test_without_ranks_it_says_where_gdrtop_looked() -> None:
    assert text_of(JOBS["no ranks"]) == [
        "Job 4711 has no process on the nodes that answer (1).",
        "gpu1: no process of this job",
        "Other jobs on these nodes: other (bob)",
    ]
    assert text_of(JOBS["nothing"]) == [
        "No NCCL job runs on the nodes that answer (0).",
        "▲ 1 node does not answer: gpu1 (no answer for 60 s)",
    ]


def test_unknown_figures_are_question_marks() -> None:
    row = next(line for line in text_of(JOBS["unknown"], 120) if line.startswith("gpu1") and "4711" in line)
    assert row.split()[:2] == ["gpu1", "?"]
