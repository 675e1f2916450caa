"""The doctor's list and one finding, as text."""

import re
from dataclasses import replace

import pytest

from probes.base.evidence import Evidence, Severity
from probes.base.plan import make_plan
from probes.checks.judgment import Judgment
from probes.queries.finding import DETOUR, Finding, PairGain, Status
from probes.snapshot.verdict import State, Verdict
from widgets.base.lines import Line, Tone, plain
from widgets.doctor.findings import counted, draw_details, draw_entries, draw_rows, entries_of, words_of
from widgets.doctor.plan import gain_text


def finding(name: str, status: Status = Status.FOUND, severity: Severity = Severity.CRITICAL) -> Finding:
    return Finding(
        id=name,
        area="modules",
        severity=severity,
        status=status,
        title=f"{name} is broken",
        evidence=(),
        cause="a cause",
        fix=None,
        reference="a manual",
        ok=f"{name} works",
        impact="half the bandwidth is lost",
    )


def text(lines: list[Line]) -> list[str]:
    return [plain(line) for line in lines]


def test_findings_with_one_cause_are_grouped_and_counted_once() -> None:
    root, other = finding("root"), finding("other", severity=Severity.WARNING)
    part = replace(finding("part"), part_of="root")
    deeper = replace(finding("deeper"), part_of="part")
    some = [part, root, deeper, other]
    assert [(entry.id, entry.depth) for entry in entries_of(some)] == [
        ("root", 0),
        ("part", 1),
        ("deeper", 1),
        ("other", 0),
    ]
    rows = text(draw_entries(entries_of(some), 120))
    assert rows[1].startswith("✗ └ part")
    assert counted(some).startswith("1 critical, 1 warning; ")
    assert "same cause as root" in "\n".join(text(draw_details(part, 80)))


def test_findings_that_name_each_other_are_all_listed() -> None:
    some = [replace(finding("a"), part_of="b"), replace(finding("b"), part_of="a")]
    assert {entry.id for entry in entries_of(some)} == {"a", "b"}


def test_checks_that_could_not_run_are_grouped_by_need() -> None:
    needs_root = [replace(finding(f"r{n}", Status.UNKNOWN), cause="needs root") for n in range(3)]
    ended = replace(finding("p", Status.UNKNOWN), cause="needs the environment of process 7 (it has ended)")
    lost = replace(finding("x", Status.UNKNOWN), cause="not there: /sys/x")
    rows = text(draw_entries(entries_of([*needs_root, ended, lost]), 120))
    assert rows == [
        "? 3 checks need root",
        "? 1 check needs the environment of process 7 (it has ended)",
        "? 1 check could not run (not there: /sys/x)",
    ]


def test_a_count_of_the_past_is_no_word_for_now() -> None:
    flaps = replace(finding("link-flaps-carrier", severity=Severity.WARNING), marked=("mlx5_9",))
    assert words_of([flaps]) == {"mlx5_9": "flapping"}
    assert not words_of([replace(flaps, severity=Severity.NOTE)])


def test_a_passed_check_has_a_positive_title() -> None:
    (row,) = text(draw_entries(entries_of([finding("nvidia-not-loaded", Status.PASSED)]), 80))
    assert row.startswith("✓ nvidia-not-loaded works")
    assert row.endswith("nvidia-not-loaded")
    assert "broken" not in row


def test_the_parts_of_a_finding_are_in_order() -> None:
    long_finding = replace(finding("a"), evidence=(Evidence("/proc/modules", "not loaded"),))
    lines = text(draw_details(long_finding, 80))
    assert lines[0] == "✗ a is broken"
    assert [line.split()[0] for line in lines if line[:1].isupper()] == [
        "Impact",
        "Cause",
        "Evidence",
        "Fix",
        "More",
    ]
    assert "Impact    half the bandwidth is lost" in lines
    assert "Evidence  not loaded  /proc/modules" in lines


def test_a_finding_without_a_fix_of_its_own_names_the_one_to_fix() -> None:
    part = replace(finding("part"), part_of="root")
    assert "Fix       See root, which has the same cause." in text(draw_details(part, 80))
    assert "Fix       No command fixes this." in text(draw_details(finding("root"), 80))


def test_only_equal_evidence_is_folded() -> None:
    equal = tuple(Evidence(f"setpci -s 0000:17:{n:02x}.0 ECAP_ACS+6.w", "001d") for n in range(16))
    other = (Evidence("/proc/cmdline", "pci=noacs"), Evidence("/proc/modules", "001d"))
    lines = "\n".join(text(draw_details(replace(finding("a"), evidence=(*equal, *other)), 100)))
    assert lines.count("setpci") == 1
    assert "and 15 more like it" in lines
    assert "/proc/cmdline" in lines
    assert "/proc/modules" in lines


def test_a_title_and_its_device_share_a_narrow_line() -> None:
    long_finding = replace(
        finding("a"), title="a title that is much too long for it", devices=("mlx5_0", "mlx5_1")
    )
    (row,) = text(draw_entries(entries_of([long_finding]), 36))
    assert re.search(r"\w… +mlx5_0 \+1$", row)
    assert len(row) <= 36


def test_gpus_have_their_names_and_their_address_is_detail() -> None:
    named = replace(finding("gpu-slow"), devices=("0000:0a:00.0", "0000:0f:00.0", "mlx5_0"))
    labels = {"0000:0f:00.0": "GPU1"}
    (row,) = text(draw_entries(entries_of([named]), 120, labels))
    assert row.endswith("GPU1")
    assert "gpu-slow · critical · GPU1 (0000:0f:00.0), mlx5_0, 0000:0a:00.0" in "\n".join(
        text(draw_details(named, 80, labels))
    )


def test_the_fix_of_a_finding_says_what_it_brings() -> None:
    gains = [PairGain(f"GPU{n}", "mlx5_2", 230.4, 397.4, "port 1 of mlx5_2") for n in (2, 3)]
    pairs = "GPU2–mlx5_2 and GPU3–mlx5_2"
    assert gain_text(gains) == f"Should raise the limit of {pairs} from 230 to 397 Gb/s, each pair alone."
    nothing = replace(gains[0], now_gbps=0.0)
    assert gain_text([nothing]).startswith("Should give GPU2–mlx5_2 up to 397 Gb/s by GPUDirect RDMA;")
    detours = [replace(gain, now_gbps=DETOUR) for gain in gains]
    assert gain_text(detours).endswith("each pair alone. Their traffic uses the CPU now, at an unknown rate.")
    assert gain_text(detours[:1]).endswith(" 397 Gb/s. Its traffic uses the CPU now, at an unknown rate.")
    assert "16 pairs (GPU0–mlx5_2 …)" in gain_text([replace(gains[0], gpu=f"GPU{n}") for n in range(16)])
    assert gain_text([]) == ""


def test_where_one_row_is_left_it_has_the_fix_of_the_first_finding() -> None:
    long = make_plan(
        "Install the driver that this kernel needs, from the repository of the distribution", "…"
    )
    first, second = (
        replace(finding("first"), fix=long),
        replace(finding("second"), fix=make_plan("Stop", "…")),
    )
    shown = text(draw_rows(judged(READY, first, second), {}, 60, most=3))
    assert "Install the driver" in shown[1]
    assert shown[1].endswith("…")
    assert len(shown) == 3
    shown = text(draw_rows(judged(READY, first, second), {}, 60, most=5))
    assert "distribution" in " ".join(shown[1:-1])


def judged(state: State, *findings: Finding) -> Judgment:
    return Judgment(Verdict(state, None, 0, 0, ""), findings)


READY = State.READY


@pytest.mark.parametrize(("state", "mark"), [(State.UNKNOWN, "?"), (State.NOT_APPLICABLE, "–")])
def test_nothing_is_green_where_the_node_could_not_be_judged(state: State, mark: str) -> None:
    lost = [replace(finding(name), status=Status.UNKNOWN, cause="no connection") for name in "abc"]
    passed = replace(finding("d"), status=Status.PASSED)
    for width in (30, 60):
        lines = draw_rows(judged(state, *lost, passed), {}, width)
        assert Tone.GOOD not in {run.tone for line in lines for run in line}
        assert " ".join(" ".join(text(lines)).split()) == (
            f"{mark} no findings; 1 check passed, 3 could not run (Doctor)"
        )
    assert text(draw_rows(judged(READY, *lost, passed), {}, 60))[0].startswith("✓ no critical")


def test_a_part_of_another_finding_leaves_the_gain_to_it() -> None:
    gains = (PairGain("GPU2", "mlx5_2", 230.4, 397.4, "port 1 of mlx5_2"),)
    root = replace(finding("root"), gains=gains)
    assert any("397 Gb/s" in line for line in text(draw_details(root, 200)))
    part = replace(root, part_of="cause")
    assert not any("397 Gb/s" in line for line in text(draw_details(part, 200)))


def test_a_device_without_a_name_is_not_named_twice() -> None:
    bare = replace(finding("a"), devices=("ib_uverbs", "0000:1a:00.0", "0000:18:00.0"))
    shown = text(draw_details(bare, 120, {"0000:1a:00.0": "0000:1a:00.0", "0000:18:00.0": "GPU0"}))
    assert "  a · critical · ib_uverbs, 0000:1a:00.0, GPU0 (0000:18:00.0)" in shown
