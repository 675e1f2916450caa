"""The tables of texts: the code uses each of them."""

from pathlib import Path

import pytest

from probes.base.data_files import read_toml

FOLDER = Path(__file__).parents[3] / "probes/setup"
PROBLEMS = [*read_toml("probes.setup.env", "problems.toml")]
ADVICE = [*read_toml("probes.setup.env", "advice.toml")]
MANIFESTS = read_toml("probes.setup.manifests", "manifests.toml")
COMMENTS = [*(name for part in ("comment", "note", "refused") for name in MANIFESTS.pop(part)), *MANIFESTS]


@pytest.mark.parametrize(("folder", "names"), [("env", PROBLEMS), ("env", ADVICE), ("manifests", COMMENTS)])
def test_every_text_is_used(folder: str, names: list[str]) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (FOLDER / folder).glob("*.py"))
    assert [name for name in names if f'"{name}"' not in code] == []
