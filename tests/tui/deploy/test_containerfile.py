"""The instructions of the Containerfile; tests/test_packages.py builds the image where that is possible."""

import re
import shlex

from tests.support.command_line import ROOT

TEXT = (ROOT / "tui/deploy/Containerfile").read_text()
LINES = [line for line in TEXT.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
INSTRUCTIONS = [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in LINES)]
KNOWN = {"FROM", "ARG", "COPY", "RUN", "LABEL", "ENV", "USER", "ENTRYPOINT"}


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name; "" for the last one, which is built without --target."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in INSTRUCTIONS:
        if word == "FROM":
            found[rest.partition(" AS ")[2]] = []
        else:
            list(found.values())[-1].append((word, rest))
    return found


def test_all_instructions_are_known() -> None:
    assert {word for word, _ in INSTRUCTIONS} <= KNOWN
    assert list(stages()) == ["build", "npd", ""]


def test_base_images_have_a_version() -> None:
    for word, rest in INSTRUCTIONS:
        if word == "FROM":
            assert re.search(r":v?\d+\.\d+", rest), rest


def test_no_image_runs_as_root_by_default() -> None:
    for name in ("npd", ""):
        assert dict(stages()[name])["USER"] == "65534:65534"


def test_the_image_says_what_it_is() -> None:
    labels = dict(word.split("=", 1) for word in shlex.split(dict(stages()[""])["LABEL"]))
    assert labels["org.opencontainers.image.title"] == "gdrtop"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert {"version", "revision", "description"} <= {name.rpartition(".")[2] for name in labels}


def test_gdrtop_is_where_the_chart_starts_it() -> None:
    """And it comes from the wheel, in every stage that has pip."""
    config_map = (ROOT / "tui/deploy/chart/templates/configmap.yaml").read_text()
    assert "exec /opt/gdrtop/bin/gdrtop " in config_map
    for name in ("build", "npd"):
        (run,) = (rest for word, rest in stages()[name] if word == "RUN" and "pip install" in rest)
        assert "/opt/gdrtop/bin/pip install" in run
        assert "/dist/gdrtop-*.whl" in run
        assert ("COPY", "dist/*.whl /dist/") in stages()[name]
    assert ("COPY", "--from=build /opt/gdrtop /opt/gdrtop") in stages()[""]
