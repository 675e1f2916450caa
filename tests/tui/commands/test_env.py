"""`gdrtop env`: its formats are accepted by what reads them, and its exit status says how a file is."""

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from probes.facts.jobs.nccl_conf import parse_nccl_conf
from probes.setup.env.advice import Advice, Setting, lines_of
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from tests.support.documents import valid
from tests.support.pilot import SteppedClock
from tests.support.sources import modules_after
from tests.support.tiers import USUAL_NODES
from tui.cli import main
from tui.commands.env import EnvOptions, write_environment

WANTED = {"NCCL_IB_GID_INDEX": "3"}  # of pcie-l40s with NCCL 2.20


def printed(form: str, node: str = "pcie-l40s", nccl: str = "2.20", **options: Any) -> str:
    out = io.StringIO()
    assert (
        write_environment(
            SimulatedHost(node, clock=SteppedClock()), out, EnvOptions(form=form, nccl=nccl, **options)
        )
        == 0
    )
    return out.getvalue()


def run(*arguments: str) -> int:
    return main(["env", "--demo", "pcie-l40s", *arguments])


def test_a_shell_can_source_it() -> None:
    text = printed("shell") + '\necho "$NCCL_NET_GDR_LEVEL $NCCL_IB_GID_INDEX"\n'  # a comment names the first
    done = subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (" 3\n", "")


def test_what_the_hardware_cannot_do_is_nothing_to_fix() -> None:
    text = " ".join(printed("shell", "dgx-spark", "").replace("#", "").split())
    assert "NCCL_NET_GDR_LEVEL: no variable can help, by design: GB10" in text
    assert "Fix the node first" not in text


def test_values_that_zsh_would_expand_are_quoted() -> None:
    advice = Advice(
        (2, 27), "stated", (Setting("NCCL_IB_HCA", "=mlx5_0,mlx5_1", "a"), Setting("NCCL_DEBUG", "it's", "b"))
    )
    lines = [line for line in lines_of(advice, "node", "shell") if line.startswith("export ")]
    assert lines[0] == "export NCCL_IB_HCA='=mlx5_0,mlx5_1'"
    script = "\n".join((*lines, 'echo "$NCCL_IB_HCA $NCCL_DEBUG"'))
    done = subprocess.run(["/bin/sh"], input=script, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("=mlx5_0,mlx5_1 it's\n", "")


def test_the_script_of_a_cloud_is_read_by_every_shell() -> None:
    lines = printed("shell", "gcp-a4", "").splitlines()
    assert ". /usr/local/gib/scripts/set_nccl_env.sh" in lines
    assert not any(line.startswith("source ") for line in lines)


def test_a_task_prolog_prints_what_the_user_has_not_set() -> None:
    script = printed("slurm")
    for environment, line in (({}, "export NCCL_IB_GID_INDEX=3\n"), ({"NCCL_IB_GID_INDEX": "5"}, "")):
        done = subprocess.run(
            ["/bin/sh"], input=script, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == (line, "")


def test_kubernetes_gets_strings() -> None:
    (document,) = yaml.safe_load_all(printed("k8s"))
    assert {entry["name"]: entry["value"] for entry in document["env"]} == WANTED


def test_nccl_reads_the_lines_of_nccl_conf() -> None:
    parsed = parse_nccl_conf(printed("nccl-conf"))
    assert parsed.values == WANTED
    assert not parsed.ignored


@pytest.mark.parametrize("name", simulated_names())
def test_every_line_is_short_and_has_a_reason(name: str) -> None:
    text = printed("shell", name, "")
    assert all(len(line) <= 80 or line.startswith("export ") for line in text.splitlines())
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("export "):
            assert lines[number - 1].startswith("# ")


@pytest.mark.slow
def test_a_healthy_infiniband_node_says_that_it_needs_nothing() -> None:
    text = printed("shell", "hgx-h100", "")
    assert "\n# hgx-h100 needs no variable: the defaults are right" in text
    assert "export" not in text
    assert printed("shell", "hgx-h100", "", ascii=True).isascii()


@pytest.mark.slow
def test_json_is_what_its_schema_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in USUAL_NODES:
        document = valid("env", printed("shell", name, "", json=True))
        assert document["explanation"] is None
    document = valid("env", printed("shell", json=True))
    assert {setting["name"]: setting["value"] for setting in document["recommendation"]["settings"]} == WANTED
    assert run("--json", "--explain", "NCCL_NET_GDR_LEVEL=5") == 0
    assert valid("env", capsys.readouterr().out)["explanation"]["value"] == "5"
    file = tmp_path / "job.sh"
    file.write_text("export NCCL_IB_DISABLE=1\n")
    assert run("--json", "--lint", str(file)) == 2
    document = valid("env", capsys.readouterr().out)
    assert document["exit_status"] == 2
    assert document["lint"]["problems"][0]["severity"] == "error"


@pytest.mark.parametrize(
    ("name", "text", "status", "words"),
    [
        ("ok.sh", "export NCCL_IB_TIMEOUT=20\n", 0, "ok.sh (shell, 1 variable checked): "),
        ("a.sh", "NCCL_DEBUG=INFO\n", 1, "a.sh:1: warning: NCCL_DEBUG is set but not exported"),
        ("nccl.conf", "NCCL_NET=Socket\n", 2, "nccl.conf:1: error: NCCL_NET=Socket makes a job use TCP"),
        ("pod.yaml", "a: [\n", 2, "error: The file is not valid YAML"),
        ("pod.yaml", "a: b\n", 3, "pod.yaml (YAML, no variable found): nothing was checked"),
        ("a.sh", "export NCCL_NET=$X\n", 3, "0 variables checked, 1 known only when the job runs"),
    ],
)
def test_lint_names_the_line_and_ends_with_a_status(
    name: str, text: str, status: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert run("--lint", str(tmp_path / name)) == status
    assert words in " ".join(capsys.readouterr().out.split())


def test_lint_checks_several_files_and_ends_with_the_worst_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = []
    for name, text in {
        "a.sh": "export NCCL_DEBUG=INFO\n",
        "b.sh": "true\n",
        "c.sh": "export NCCL_NET=Socket\n",
    }.items():
        (tmp_path / name).write_text(text)
        names.append(str(tmp_path / name))
    assert run("--lint", *names) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert "c.sh:1: error: NCCL_NET=Socket" in out
    assert "b.sh (shell, no variable found): nothing was checked" in out
    assert run("--lint", *names[:2]) == 0
    assert run("--lint", names[1]) == 3
    capsys.readouterr()
    assert run("--json", "--lint", *names) == 2
    document = valid("env", capsys.readouterr().out)
    assert [Path(file["file"]).name for file in document["more_files"]] == ["b.sh", "c.sh"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lint", "/nowhere/job.sh"], "cannot be read"),
        (["--lint", "/tmp"], "a directory"),
        (["--explain", "NCCL_NET_GDR_LEVL=5"], "did you mean NCCL_NET_GDR_LEVEL"),
        (["--explain", "nccl_debug"], "did you mean NCCL_DEBUG"),
        (["--explain", "CUDA_VISIBLE_DEVICES=0"], "is not an NCCL, UCX, NVSHMEM or libfabric variable; try"),
        (["--kind", "pod"], "--kind needs --lint"),
        (["--k8s", "--explain", "NCCL_NET"], "--k8s formats the recommendation"),
        (["--nccl", "new"], "is not an NCCL version"),
        (["--shell", "--json"], "not allowed with"),
    ],
)
def test_wrong_usage_is_one_line_and_status_3(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 3
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "big.sh"
    file.write_bytes(b"#" * ((1 << 20) + 1))
    assert run("--lint", str(file)) == 3
    assert "larger than 1 MiB" in capsys.readouterr().err


def test_hostile_files_print_no_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.sh"
    file.write_bytes(b"export NCCL_IB_HCA=\x1b[31mred\xff NCCL_NET=\x07Socket\n")
    run("--lint", str(file))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_explain_is_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--explain", "NCCL_NET_GDR_LEVEL=5") == 0
    out = capsys.readouterr().out
    assert "5 means SYS: always" in out
    assert "Default: PXB, P2C since 2.29." in out
    assert "Versions: 2.4.2 and newer" in out
    assert "GPU2, GPU3: the nearest NIC is at distance SYS." in out


@pytest.mark.slow
def test_the_environment_is_printed_without_textual_and_yaml() -> None:
    modules = modules_after("from tui.cli import main\nassert main(['env', '--demo']) == 0")
    assert "probes.setup.env.recommend" in modules
    assert not modules & {"textual", "yaml", "pynvml", "tarfile"}


def test_other_variables_of_nccl_have_versions_and_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    """NCCL_PARAM(GinType, "GIN_TYPE", -1) is in src/gin/gin_host.cc of v2.28.7-1, and in no earlier tag."""
    assert run("--explain", "NCCL_GIN_TYPE=3") == 0
    text = capsys.readouterr().out
    assert "Versions: 2.28.7 and newer" in text
    assert "Default in the source: -1 since 2.28.7." in text
    assert run("--explain", "nccl_agg_channel_size") == 0
    assert "NCCL read this variable up to 2.19.4." in capsys.readouterr().out
    assert run("--json", "--explain", "NCCL_GIN_TYPE=3") == 0
    explanation = valid("env", capsys.readouterr().out)["explanation"]
    assert explanation["defaults"] == [{"since": "2.28.7", "value": "-1"}]
    assert explanation["notes"] == ["Versions: 2.28.7 and newer (of those up to 2.31.2)."]
