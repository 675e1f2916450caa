"""`gdrtop manifest metrics`: units, alert rules and a dashboard that fit the metrics."""

import json
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from probes.snapshot.verdict import State
from tests.support.command_line import printed
from tests.support.observed_metrics import METRICS, families_of
from tui.cli import main
from tui.commands.manifest import monitoring_files

FILE = "/srv/100% of $it/gdrtop.prom"
DURATION = re.compile(r"\d+[smhd]")
NODES = ("hgx-h100", "hgx-h100+acs-on", "hgx-h100+nvidia-not-loaded")
METRIC = re.compile(r"gdrtop_\w+")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(monitoring_files()["gdrtop-rules.yml"])["groups"]
    assert group["name"] == "gdrtop"
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads(monitoring_files()["gdrtop-dashboard.json"])["panels"])


def expressions() -> list[str]:
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*(rule["expr"] for rule in rules()), *queries]


def test_rules_and_panels_use_only_metrics_that_are_written() -> None:
    used = {name for text in expressions() for name in METRIC.findall(text)}
    assert used <= {metric.name for metric in METRICS}
    written = {family.metric.name for node in NODES for family in families_of(node)}
    assert used <= written


def test_their_labels_and_states_are_written_too() -> None:
    labels: dict[str, set[str]] = {}
    for node in NODES:
        for family in families_of(node):
            for sample in family.samples:
                labels.setdefault(family.metric.name, {"instance"}).update(sample.labels)
    for text in expressions():
        for name, matchers in re.findall(r"(gdrtop_\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)=", matchers)) <= labels[name]
    states = {s.labels["state"] for f in families_of("hgx-h100") for s in f.samples if "state" in s.labels}
    assert {word for text in expressions() for word in re.findall(r'state="(\w+)"', text)} <= states


def test_rules_have_the_form_that_prometheus_reads() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"[A-Z][A-Za-z]+", rule["alert"])
        assert DURATION.fullmatch(rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        for text in rule["annotations"].values():
            assert re.sub(r"\{\{ .*? \}\}", "", text).count("{") == 0
        for opening, closing in ("()", "{}", "[]"):
            assert rule["expr"].count(opening) == rule["expr"].count(closing)
    assert any("gdrtop_last_check_timestamp_seconds" in rule["expr"] for rule in rules())


def test_the_dashboard_can_be_imported() -> None:
    content = json.loads(monitoring_files()["gdrtop-dashboard.json"])
    assert "id" not in content
    assert "__inputs" not in content
    assert {variable["name"] for variable in content["templating"]["list"]} == {"datasource", "instance"}
    assert len({panel["id"] for panel in panels()}) == len(panels())
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own
        assert max(x for x, _ in own) < 24
        cells |= own
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"])


def test_the_verdict_has_a_word_and_a_color_of_its_own_for_each_state() -> None:
    """A number without a word, or BROKEN in the color of ACTIVE, would hide a fault."""
    panel = next(panel for panel in panels() if panel["type"] == "state-timeline")
    ((expression,),) = [[target["expr"] for target in panel["targets"]]]
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    words = {number: shown["text"] for number, shown in mapping["options"].items()}
    states = re.findall(r'(\d) \* gdrtop_verdict\{state="(\w+)"', expression)
    assert {number: state.upper().replace("_", " ") for number, state in states} == words
    assert set(words.values()) == {state.value for state in State}
    assert len({shown["color"] for shown in mapping["options"].values()}) == len(State)


def test_nothing_counts_a_job_once_for_each_of_its_nodes() -> None:
    """No figure of jobs is summed over nodes, as the metrics have no job's name."""
    for text in expressions():
        for name in re.findall(r"\b(?:sum|avg|count)\b[^(]*\((gdrtop_job\w+\{[^}]*\}(?: > bool 0)?)", text):
            assert name.endswith("> bool 0")
        assert not re.search(r"\b(?:sum|count|avg)\b(?! by \(path\) \(gdrtop_jobs)", text)


def test_no_alert_has_a_text_of_gdrtop_in_its_labels() -> None:
    """An alert with another text would be another alert, which fires again after an update."""
    for rule in rules():
        used = set(re.findall(r"gdrtop_finding\b", rule["expr"]))
        left_out = set(re.findall(r"\w+", "".join(re.findall(r"without \(([^)]*)\)", rule["expr"]))))
        assert not used or "title" in left_out


def test_the_timer_writes_the_file_that_was_asked_for() -> None:
    service = monitoring_files(FILE)["gdrtop-metrics.service"]
    (command,) = re.findall(r"^ExecStart=(.*)$", service, re.M)
    assert command.endswith('gdrtop metrics --textfile "/srv/100%% of $$it/gdrtop.prom"')
    assert 'ReadWritePaths=-"/srv/100%% of $it"\n' in service
    assert "PrivateDevices=no" in service  # NVML needs /dev/nvidia*


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("textfile", ["/var/lib/prometheus/node-exporter/gdrtop.prom", FILE])
def test_systemd_accepts_the_units(textfile: str, tmp_path: Path) -> None:
    files = monitoring_files(textfile)
    for name in ("gdrtop-metrics.service", "gdrtop-metrics.timer"):
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", files[name], flags=re.M)
        (tmp_path / name).write_text(text, encoding="utf-8")
    units = [str(tmp_path / name) for name in ("gdrtop-metrics.service", "gdrtop-metrics.timer")]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "gdrtop" in line]) == (0, [])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(monitoring_files()["gdrtop-rules.yml"], encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True)
    assert done.returncode == 0, done.stderr
    test = tmp_path / "test.yml"
    test.write_text(yaml.safe_dump(promtool_test(tmp_path / "rules.yml")), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", str(test)], capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool_test(rules_file: Path) -> dict[str, Any]:
    """A broken node whose port pauses the network: its alerts, and its figures in the dashboard."""
    states = ((state.name.lower(), int(state is State.BROKEN)) for state in State)
    series = {f'gdrtop_verdict{{instance="gpu01",state="{name}"}}': f"{value}x30" for name, value in states}
    pause = 'gdrtop_port_pause_seconds_total{{instance="gpu01",device="mlx5_0",direction="{}",priority="3"}}'
    series |= {pause.format("received"): "0+1x30", pause.format("transmitted"): "0+30x30"}
    # An update words the title differently. Later, gdrtop dies.
    finding = 'gdrtop_finding{{instance="gpu01",id="acs",severity="critical",title="{}",device="{}"}}'
    series |= {
        finding.format("old", "0000:18:00.0"): "1x10 stale",
        finding.format("new", "0000:18:00.0"): "_x10 1x20",
    }
    series |= {finding.format("new", "0000:19:00.0"): "_x10 1x20"}
    series |= {'gdrtop_last_check_timestamp_seconds{instance="gpu01"}': "0+60x30"}
    # One job on three nodes.
    series |= {f'gdrtop_jobs{{instance="gpu0{node}",path="peermem"}}': "1x30" for node in (1, 2, 3)}
    series |= {'gdrtop_jobs{instance="gpu01",path="tcp"}': "0x30"}
    (jobs,) = (panel["targets"][0]["expr"] for panel in panels() if "jobs" in panel["title"])
    acs = {
        "exp_labels": {"severity": "critical", "instance": "gpu01", "id": "acs"},
        "exp_annotations": {"summary": "new on gpu01", "description": "Run gdrtop check acs on the node."},
    }
    gone = {
        "exp_labels": {"severity": "warning", "instance": "gpu01"},
        "exp_annotations": {
            "summary": "gdrtop on gpu01 has no metrics any more",
            "description": "gdrtop metrics, its exporter or the node is down. This alert ends after 6 hours.",
        },
    }
    labels = {"severity": "warning", "instance": "gpu01", "device": "mlx5_0", "direction": "transmitted"}
    (verdict,) = (target["expr"] for panel in panels()[:1] for target in panel["targets"])
    rise = {
        "summary": "mlx5_0 on gpu01 pauses the network",
        "description": "It receives slower than its peers send 50% of the time.",
    }
    at = {"eval_time": "20m"}
    return {
        "rule_files": [str(rules_file)],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": text} for name, text in series.items()],
                "alert_rule_test": [
                    {
                        **at,
                        "alertname": "GdrtopPortPausesNetwork",
                        "exp_alerts": [{"exp_labels": labels, "exp_annotations": rise}],
                    },
                    {**at, "alertname": "GdrtopPortPaused", "exp_alerts": []},
                    {**at, "alertname": "GdrtopDegraded", "exp_alerts": []},
                    # Fires from 5m on, and is not pending again after the update at 11m.
                    {"eval_time": "12m", "alertname": "GdrtopCriticalFinding", "exp_alerts": [acs]},
                    {**at, "alertname": "GdrtopGone", "exp_alerts": []},
                    {"eval_time": "50m", "alertname": "GdrtopGone", "exp_alerts": [gone]},
                    {"eval_time": "300m", "alertname": "GdrtopGone", "exp_alerts": [gone]},
                    {"eval_time": "420m", "alertname": "GdrtopGone", "exp_alerts": []},
                ],
                "promql_expr_test": [
                    {
                        **at,
                        "expr": verdict.replace("$instance", ".*"),
                        "exp_samples": [{"labels": '{instance="gpu01"}', "value": 4}],
                    },
                    {
                        **at,
                        "expr": jobs.replace("$instance", ".*"),
                        "exp_samples": [
                            {"labels": '{path="peermem"}', "value": 3},
                            {"labels": '{path="tcp"}', "value": 0},
                        ],
                    },
                ],
            }
        ],
    }


def test_the_files_are_printed_or_written_to_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "manifest", "metrics")
    assert [name for name in monitoring_files(FILE) if f"# ==> {name} <==\n" in text] == list(
        monitoring_files(FILE)
    )
    directory = tmp_path / "monitoring"
    arguments = ["manifest", "metrics", "--textfile", FILE, "-o", str(directory)]
    assert main(arguments) == 0
    written = {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}
    assert written == dict(monitoring_files(FILE))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    capsys.readouterr()
    (directory / "gdrtop-rules.yml").unlink()
    assert main(arguments) == 3  # nothing is overwritten, and nothing half written
    assert "already exists" in capsys.readouterr().err
    assert not (directory / "gdrtop-rules.yml").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["helm", "--textfile", FILE], "only to metrics"), (["metrics", "--textfile", "/a.txt"], ".prom")],
)
def test_wrong_usage_is_status_3(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", *arguments]) == 3
    assert error in capsys.readouterr().err
