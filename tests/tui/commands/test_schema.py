"""Every JSON document says what it is, and is what the schema in the package says."""

import io
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

from probes.base.evidence import Evidence
from probes.base.unknown import Reason, Unknown
from probes.host.machine.local import LocalHost
from probes.live.model.sample import EventKind
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from tests.support.command_line import printed
from tests.support.documents import valid, validator
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read
from tests.support.tiers import usual
from tests.tui.commands import published_schemas
from tests.tui.commands.published_schemas import COMMAND, broken_lines, published_file, shape
from tui.cli import main
from tui.command_line.options import TableOptions
from tui.commands.check import CheckOptions, write_check
from tui.commands.do import Do
from tui.commands.modules import write_modules
from tui.commands.schema import DOCUMENTS, KINDS, _hints, schema_text
from tui.commands.topo import TopologyOptions, write_topology
from tui.runtime.json_values import SCHEMA_VERSIONS, Changed, field_names, object_from

FAULTS = """
    nvidia-not-loaded peermem-built-without-symbols module-blacklisted
    dmabuf-nic-driver-lacks-support acs-on bar1-too-small port-down roce-gid-wrong
    nic-without-rdma-device xid-79-fell-off-bus gpu-missing-from-nvml driver-library-mismatch
    fabric-manager-down memlock-login pid-namespace-hides-users nccl-ib-hca-mismatch
"""
NODES = [
    *simulated_names(),
    *(f"hgx-h100+{fault}" for fault in FAULTS.split()),
    "cloud-vm+gpu-without-driver",
]

WRITERS = (
    ("topo", partial(write_topology, options=TopologyOptions(json=True))),
    ("modules", partial(write_modules, options=TableOptions(json=True))),
)


ROOT = Path(__file__).parents[3]


class Size(NamedTuple):
    size: int


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NODES, {"hgx-h100", "cloud-vm", "cloud-vm+gpu-without-driver"}))
def test_check_topo_modules_and_do_print_what_their_schemas_say(name: str) -> None:
    host = SimulatedHost(name, clock=SteppedClock())
    out = io.StringIO()
    status = write_check(host, out, CheckOptions(json=True))
    check = valid("check", out.getvalue())
    assert check["exit_status"] == status
    assert check["source"] == "simulated"
    assert check["label"] == name
    found = {finding["id"] for finding in check["findings"]}
    assert found == {row["id"] for row in check["checks"] if row["status"] == "found"}
    assert {finding["part_of"] for finding in check["findings"]} - {None} <= found
    counted = [finding for finding in check["findings"] if not finding["part_of"]]
    for key, severity in (("critical", "critical"), ("warnings", "warning")):
        assert check["verdict"][key] == sum(finding["severity"] == severity for finding in counted)
    out = io.StringIO()
    write_check(host, out, CheckOptions(json=True, all=True))
    assert len(valid("check", out.getvalue())["checks"]) == len(check["checks"])
    for kind, write in WRITERS:
        out = io.StringIO()
        write(host, out)
        assert valid(kind, out.getvalue())["node"] == check["node"]
    out = io.StringIO()
    assert Do(host, out, ascii_only=False, read_only=False).list(as_json=True) == 0
    assert valid("do", out.getvalue())["actions"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*simulated_names(), "hgx-h100+perftest-missing", "hgx-h100+port-down"])
@pytest.mark.parametrize("option", ["--list", "--results", "--dry-run"])
def test_bench_prints_what_its_schema_says(
    name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", "--demo", name, "--json", option])
    assert valid("bench", capsys.readouterr().out)["node"]


def test_a_tree_without_facts_has_null_and_reasons(tmp_path: Path) -> None:
    for kind, write in WRITERS:
        out = io.StringIO()
        write(LocalHost(str(tmp_path)), out)
        document = valid(kind, out.getvalue())
        assert document["source"] == "tree"
        assert document["node"] is None
        assert document["unknown"]["node"]
    out = io.StringIO()
    write_check(LocalHost(str(tmp_path)), out, CheckOptions(json=True))
    assert valid("check", out.getvalue())["exit_status"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("redact", [False, True])
def test_a_recording_names_the_node_by_its_name_or_its_token(redact: bool) -> None:
    clock = SteppedClock()
    identifiers = Identifiers(redact)
    moments = [
        identifiers.apply(moment) for moment in moments_of(SimulatedHost("hgx-h100", clock=clock), clock)
    ]
    out = io.StringIO()
    write_topology(ReplayHost(read(archive_of(moments))), out, TopologyOptions(json=True))
    document = valid("topo", out.getvalue())
    assert document["source"] == "recorded"
    assert document["node"] == ("host-1" if redact else "hgx-h100")
    assert datetime.fromisoformat(document["time"]).timestamp() == pytest.approx(moments[0].at, abs=0.001)


def test_schema_prints_each_schema_and_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "schema").split() == list(KINDS)
    for kind in KINDS:
        assert json.loads(printed(capsys, "schema", kind)) == validator(kind).schema
    assert main(["schema", "nodes"]) == 3
    assert "unknown schema 'nodes'; the schemas are check, forecast" in capsys.readouterr().err


def properties_of(kind: str) -> Iterator[tuple[str, Any]]:
    """Every property of every object in a schema."""
    waiting: list[Any] = [json.loads(schema_text(kind))]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            properties = value.get("properties", {})
            yield from properties.items() if isinstance(properties, dict) else ()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


@pytest.mark.parametrize("kind", KINDS)
def test_times_and_exit_statuses_have_the_same_names_and_forms_in_all_schemas(kind: str) -> None:
    for name, schema in properties_of(kind):
        assert name not in ("at", "taken_at", "exit", "status_code", "timestamp")
        if name == "time" or (name == "since" and kind != "env"):
            assert schema.get("format") == "date-time"
        assert "1970" not in str(schema.get("description", ""))


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_with_a_fact_more_or_less_does_not_pass(kind: str) -> None:
    head = {
        "schema": f"gdrtop/{kind}/{SCHEMA_VERSIONS.get(kind, 1)}",
        "gdrtop": "1",
        "node": None,
        "time": "?",
        "source": "live",
        "label": "",
    }
    assert not validator(kind).is_valid(head)
    assert not validator(kind).is_valid({**head, "more": 1})


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_has_one_version_in_all_places(kind: str) -> None:
    schema = validator(kind).schema
    number = SCHEMA_VERSIONS.get(kind, 1)
    assert schema["$id"] == f"urn:gdrtop:{kind}:{number}"
    assert schema["properties"]["schema"]["const"] == f"gdrtop/{kind}/{number}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_published_schema_keeps_its_keys_types_and_values(kind: str) -> None:
    schema = json.loads(schema_text(kind))
    broken = "\n  ".join(broken_lines(kind))
    assert not broken, (
        f"gdrtop/{kind} no longer has what was published:\n  {broken}\n"
        f"Raise its version, or run `{COMMAND} --unreleased` if no release had it:\n"
        "  SCHEMA_VERSIONS in tui/runtime/json_values.py\n"
        "  CHANGELOG.md, under Changed"
    )
    file = published_file(kind, schema)
    published = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    assert published == shape(schema), f"{kind} has new lines: run `{COMMAND}`"


def test_the_schemas_have_every_kind_of_event() -> None:
    for path, kind in (("events[].kind", "live"), ("kind", "watch")):
        lines = shape(json.loads(schema_text(kind)))
        assert {f'{path} = "{event.value}"' for event in EventKind} <= {*lines}


def test_a_field_is_described_by_its_comment_and_an_object_by_its_docstring() -> None:
    schema = json.loads(schema_text("check"))
    finding = schema["$defs"]["Finding"]
    assert schema["properties"]["gdrtop"]["description"] == "the version of gdrtop"
    assert finding["description"] == "A check and its outcome."
    assert finding["properties"]["impact"]["description"] == "what the user loses"
    assert "description" not in finding["properties"]["area"]
    assert finding["properties"]["since"]["description"] == "when it began; null: unknown"
    descriptions = re.findall(r'"description": "(.*)"', "".join(map(schema_text, KINDS)))
    assert not [text for text in descriptions if re.search(r'\b(?:None|False|True)\b(?!\\")|[;,:]$', text)]


def test_an_object_differs_from_its_class_as_changed_says() -> None:
    kind = Annotated[Evidence, Changed(without=("source",), size=int)]
    assert object_from(Evidence("a file", "4"), kind, size=3) == {"value": "4", "size": 3}
    part = Annotated[Evidence, Changed(only=("value",), size=int)]
    assert object_from(Evidence("a file", "4"), part, Size(5)) == {"value": "4", "size": 5}
    assert object_from(Evidence("a file", "4"), Evidence, value=Unknown(Reason.NOT_THERE)) == {
        "source": "a file",
        "value": None,
        "unknown": {"value": "not there"},
    }


def test_an_object_leaves_out_only_fields_that_its_class_has(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: set[str] = set()
    names = Changed.names

    def checked_names(changed: Changed, given: Iterable[str]) -> tuple[str, ...]:
        given = tuple(given)
        wrong.update({*changed.without, *changed.only} - {*given})
        return names(changed, given)

    monkeypatch.setattr(Changed, "names", checked_names)
    field_names.cache_clear()
    _hints.cache_clear()
    for kind in KINDS:
        schema_text(kind)
    assert not wrong


def test_every_document_has_a_schema() -> None:
    found = {
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}.{name}"
        for path in (ROOT / "tui").rglob("*.py")
        for name in re.findall(r"^class (\w+Document)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {*DOCUMENTS.values()}


def test_the_shape_of_a_schema_has_keys_types_and_values() -> None:
    schema = {
        "properties": {
            "state": {"enum": ["ok", None]},
            "rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}},
        },
        "required": ["rows"],
        "$defs": {
            "Row": {
                "properties": {
                    "parent": {"anyOf": [{"$ref": "#/$defs/Row"}, {"type": "null"}]},
                    "size": {"type": ["number", "null"]},
                },
                "required": ["parent", "size"],
            }
        },
    }
    assert shape(schema) == [
        "rows: array",
        "rows[].parent: #/$defs/Row or null",
        "rows[].size: null or number",
        "rows[]: value",
        'state = "ok"',
        "state = null",
        "state: value, optional",
    ]


def test_a_key_that_went_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(published_schemas, "FOLDER", tmp_path)
    assert broken_lines("check") == []
    number = SCHEMA_VERSIONS.get("check", 1)
    (tmp_path / f"check-{number}.txt").write_text("color: string\ngdrtop: string\n")
    assert broken_lines("check") == ["color: string"]
