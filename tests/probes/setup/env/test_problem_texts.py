"""The table of texts about files: each is used, and reads like the rest of gdrtop."""

from pathlib import Path

from probes.base.data_file import read_table
from tests.test_voice import PHRASES

FOLDER = Path(__file__).parents[4] / "probes/setup/env"
TEXTS = read_table("probes.setup.env", "problems.toml")


def test_every_text_is_used() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    assert [id_ for id_ in TEXTS if f'"{id_}"' not in code] == []


def test_no_text_has_a_replaced_phrase() -> None:
    assert [text for row in TEXTS.values() for text in row.values() if PHRASES.search(text)] == []
