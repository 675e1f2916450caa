"""The boxes of DCGM: which test failed, on which GPU, and DCGM's own words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probes.messages.message import Weight
from tests.support.read_texts import found_in, kinds_of, read, serious_in

RULE = f"+{'-' * 27}+{'-' * 48}+\n"
HEAD = f"{RULE}| Diagnostic                | Result                                         |\n{RULE}"


def box(*rows: tuple[str, str], head: str = HEAD) -> str:
    return head + "".join(f"| {name:<26}| {cell:<47}|\n" for name, cell in rows) + RULE


# stas00/ml-engineering, compute/accelerator/nvidia/debug.md
REAL = box(
    ("DCGM Version", "3.1.8"),
    ("GPU Memory", "Pass - GPUs: 1, 2, 3, 4, 5, 6, 7"),
    ("", "Fail - GPU: 0"),
    ("Warning", "GPU 0 Thermal violations totaling 13.3 second"),
    ("", "s started at 9.7 seconds into the test for GP"),
    ("", "U 0 Verify that the cooling on this machine i"),
    ("", "s functional, including external, thermal mat"),
    ("Info", "GPU 0 max power: 299.5 W"),
)


def test_a_failed_test_is_named_with_its_gpu_and_reason() -> None:
    statement = found_in(REAL)["dcgm-test-failed"]
    assert statement.title == "DCGM: GPU Memory failed (GPU: 0)"
    assert statement.weight is Weight.WARNING
    assert "totaling 13.3 seconds started at 9.7 seconds into the test for GPU 0 Verify" in statement.cause
    assert "max power" not in statement.cause
    assert read(REAL).shown == ("1 test of DCGM 3.1.8: 1 Fail. None uses a NIC.",)


def test_an_error_before_the_first_test_is_no_pass() -> None:
    text = box(("Error", "GPU 3 has uncorrectable memory errors and row"), ("", " remappings are pending"))
    assert "errors and row remappings are pending" in found_in(text)["dcgm-test-failed"].cause


def test_each_gpu_of_dcgm_4_has_its_own_result() -> None:
    text = box(("DCGM Version", "4.4.2"), ("software", "Pass"), ("", "GPU0: Pass"), ("pcie", "Fail"))
    text += box(("", "GPU0: Pass"), ("", "GPU1: Fail"), head="")
    assert found_in(text)["dcgm-test-failed"].title == "DCGM: pcie failed (GPU1)"
    good = box(("DCGM Version", "4.4.2"), ("software", "Pass"), ("", "GPU0: Pass"), ("pcie", "Skip"))
    assert serious_in(good) == set()
    assert "1 Pass, 1 Skip" in read(good).shown[0]


def test_a_watch_that_warns_is_a_note() -> None:
    rows = (
        ("Overall Health", "Warning"),
        ("GPU", ""),
        ("-> 0", "Warning"),
        ("   -> Errors", ""),
        ("      -> PCIe system", "Warning"),
        ("", "Detected more than 8 PCIe replays per minute"),
        ("", "for GPU 0 : 99999"),
    )
    text = box(*rows, head=f"{RULE}| Health Monitor Report{' ' * 55}|\n{RULE}")
    statement = found_in(text)["dcgm-test-failed"]
    assert (statement.title, statement.weight) == ("DCGM: PCIe system warns (GPU 0)", Weight.NOTE)
    assert "8 PCIe replays per minute for GPU 0" in statement.cause
    assert read(text).shown == ("DCGM's watches report: Warning.",)


@given(st.text(alphabet="|+- >GPU0:FailWarnError\n", max_size=300))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    assert "dcgmi" in kinds_of(HEAD + text)
