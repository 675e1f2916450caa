"""The comparisons with real machines, and that the page of the manual has their results."""

from __future__ import annotations

import re

import pytest

from probes.simulation.node.model.names import SIMULATED_NAMES
from tests.machines.compared import Compared, compare
from tests.machines.page import ONLY_SIMULATED, PATH, SHOWN, row, text
from tests.machines.table import COMPARISONS, SECTIONS, Comparison
from tui.manual import page

LINES = page("machines").splitlines()


def _named(comparison: Comparison) -> str:
    return f"{comparison.function.__name__}-{comparison.files[0].rpartition('/')[2]}"


@pytest.mark.parametrize(
    "comparison",
    [
        pytest.param(each, id=_named(each), marks=[pytest.mark.slow] if each.is_slow else [])
        for each in COMPARISONS
    ],
)
def test_the_page_has_the_result_of_the_comparison(comparison: Comparison) -> None:
    result = comparison.run()
    if result is None:
        pytest.skip("the data of this machine is not here")
    assert result.values, "nothing was compared"
    assert row(comparison, result) in LINES, f"run `python -m tests.machines`; now {result}"


def test_the_page_is_the_one_that_is_written() -> None:
    """Without the data: everything but the results."""
    results = dict.fromkeys(COMPARISONS, Compared(1))
    wanted = re.sub(r"\| 1 of 1 value agree:", "|", text(results))
    ours = re.sub(r"\| \d+ of \d+ values? agree[^|:]*:", "|", page("machines"))
    assert ours == wanted, f"run `python -m tests.machines`, which writes {PATH.name}"


def test_each_simulated_node_is_said_to_be_shown_or_not() -> None:
    assert sorted((*ONLY_SIMULATED, *SHOWN)) == sorted(SIMULATED_NAMES)


def test_no_row_is_there_twice() -> None:
    for rows in SECTIONS.values():
        keys = [(each.machine, each.truth) for each in rows]
        assert len(keys) == len(set(keys))


def test_a_difference_is_counted_and_named() -> None:
    result = compare({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4})
    assert (result.values, result.agreed) == (3, 1)
    assert result.differences == ("b: 2, not 3", "c: nothing, not 4")
