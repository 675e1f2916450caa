"""The columns that users choose from are those that the tables have, in their order."""

import ast
from pathlib import Path

import pytest

from tests.support.bus_bandwidth import measured
from tests.support.live_samples import a_sample
from widgets.base.lines import plain
from widgets.live import gpus, nics, ranks
from widgets.live.columns import COLUMNS, names_in, titles_of
from widgets.live.figures import COUNTER_GROUPS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("table", COLUMNS)
def test_the_list_has_the_columns_of_the_table_in_their_order(table: str) -> None:
    tree = ast.parse((ROOT / f"widgets/live/{table}.py").read_text(encoding="utf-8"))
    titles: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").lower() == "column" and node.args:
            title = node.args[0]
            titles += [str(title.value)] if isinstance(title, ast.Constant) else []
    if table == "nics":
        titles += [f"{group.title}/s" for group in COUNTER_GROUPS]
    if table == "gpus":
        titles += [title for title, *_ in gpus.FIGURES]
    listed = [column.title for column in COLUMNS[table]]
    assert sorted(listed) == sorted(titles), f"name each column in widgets/live/columns.toml: {table}"
    drawings = {
        "ranks": lambda: ranks.draw(measured(48.4, 41.2), 400),
        "nics": lambda: nics.draw(a_sample(), 400, history=lambda _: [1.0]),
        "gpus": lambda: gpus.draw(a_sample(), 400),
    }
    heading = plain(drawings[table]()[0])
    places = [heading.find(title) for title in listed if title in heading]
    assert len(places) > 9
    assert places[0] == 0
    assert places == sorted(places)


def test_names_can_be_typed_and_are_unique() -> None:
    for columns in COLUMNS.values():
        keys = [column.key for column in columns]
        assert len({key.lower() for key in keys}) == len(keys)
        assert all(key.isascii() and "," not in key for key in keys)
        assert columns[0].is_fixed


def test_hidden_columns_leave_their_room_and_the_row_keeps_its_name() -> None:
    sample = a_sample(ranks=2)
    before = plain(ranks.draw(sample, 80)[0]).split()
    hidden = titles_of("ranks", names_in(" path,NICs, , GPU, no such"))
    assert hidden == {"path", "NICs"}
    after = plain(ranks.draw(sample, 80, hidden=hidden)[0]).split()
    assert not {"path", "NICs"} & set(after)
    assert {"GPU", "pid"} <= set(after)
    assert set(after) - set(before) >= {"registered", "NCCL"}
    assert plain(nics.draw(sample, 80, hidden=titles_of("nics", ["sent"]))[0]).split()[:2] == ["NIC", "line"]
