"""The verdict's line and the panel of both paths."""

from dataclasses import replace

import pytest

from probes.checks.judgment import judge
from probes.checks.statements import path_statements
from probes.facts.gpudirect import GdrPath, GpuDirectFacts
from probes.snapshot.path_verdict import required_paths
from probes.snapshot.verdict import State, Verdict
from tests.support.doctor import examination_of
from widgets.base.lines import Line, Tone
from widgets.node import gpudirect as gpudirect_drawing
from widgets.node.verdict import draw

VERDICT = Verdict(State.ACTIVE, GdrPath.DMABUF, 8, 8, "", nics=7, critical=0, warnings=0)


def text_of(line: Line) -> str:
    return "".join(run.text for run in line)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "● ACTIVE via DMA-BUF · 8 of 8 GPUs · 7 NICs"),
        ({"warnings": 1}, "● ACTIVE via DMA-BUF · 8 of 8 GPUs · 7 NICs · 1 warning (d)"),
        (
            {"state": State.DEGRADED, "critical": 2, "warnings": 1},
            "▲ DEGRADED via DMA-BUF · 8 of 8 GPUs · 7 NICs · 2 critical, 1 warning (d)",
        ),
        ({"gpus_served": 1, "gpus": 1, "nics": 1}, "● ACTIVE via DMA-BUF · 1 of 1 GPU · 1 NIC"),
        ({"path": GdrPath.EFA}, "● ACTIVE via EFA peer memory · 8 of 8 GPUs · 7 NICs"),
        (
            {"state": State.BROKEN, "path": None, "gpus_served": 0, "nics": 0, "critical": 1},
            "✗ BROKEN · 0 of 8 GPUs · 1 critical (d)",
        ),
        ({"state": State.UNKNOWN, "path": None, "critical": 1}, "? UNKNOWN · 1 critical (d)"),
        ({"state": State.NOT_APPLICABLE, "path": None}, "– NOT APPLICABLE"),
        ({"critical": None, "warnings": None}, "○ ACTIVE via DMA-BUF · 8 of 8 GPUs · 7 NICs · checking…"),
    ],
)
def test_the_line(changes: dict[str, object], text: str) -> None:
    assert text_of(draw(replace(VERDICT, **changes), key="d")) == text  # type: ignore[arg-type]


def test_the_numbers_of_findings_have_the_color_of_the_worst() -> None:
    tones = {run.text: run.tone for run in draw(replace(VERDICT, critical=1, warnings=3))}
    assert tones["1 critical, 3 warnings"] is Tone.BAD
    tones = {run.text: run.tone for run in draw(replace(VERDICT, warnings=3))}
    assert tones["3 warnings"] is Tone.WARNING


def panel(name: str, full: bool = False) -> str:
    examination = examination_of(name)
    node, paths, peermem = examination.node, judge(examination).paths, examination.reading.peermem
    lines = gpudirect_drawing.draw(node, paths, peermem, None, 60, full)
    (strip,) = gpudirect_drawing.strip(node, paths, peermem, None, 80)
    return "\n".join(text_of(line) for line in (*lines, strip))


@pytest.mark.parametrize("name", ["gb200", "pcie-l40s", "cloud-vm"])
def test_peermem_is_no_fault_where_dmabuf_works(name: str) -> None:
    shown = panel(name)
    assert "– not needed" in shown
    assert "✗" not in shown
    likely = "DMA-BUF is likely in use. Only root can prove it."
    assert likely in panel(name, full=True).replace("\n", " ")
    assert "root" not in shown


def test_dmabuf_is_no_fault_where_peermem_works() -> None:
    shown = panel("dgx-a100")
    assert "✗" not in shown
    assert "DMA-BUF needs the open kernel modules" in shown


def test_both_paths_are_faults_where_neither_works() -> None:
    assert panel("dgx-a100+no-gdr-path").count("✗ not usable") == 2


def test_efa_has_its_own_name() -> None:
    examination = examination_of("dgx-a100")
    direct = examination.node.gpudirect
    assert isinstance(direct, GpuDirectFacts)
    own = replace(direct.peermem, path=GdrPath.EFA)
    node = replace(examination.node, gpudirect=replace(direct, peermem=own, preferred=GdrPath.EFA))
    usability = replace(examination.usability, paths=required_paths(replace(direct, peermem=own)))
    paths = path_statements(usability, judge(examination).verdict, ())
    lines = gpudirect_drawing.draw(node, paths, None, None, 60)
    assert any(text_of(line).startswith("EFA ") for line in lines)
