"""The Prolog stops no job because of a warning; and the options of containers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from probes.facts.system.slurm import SlurmFacts
from tests.support.parsed_manifests import (
    ABSENT,
    DMABUF,
    OPERATOR,
    PEERMEM,
    changed,
    request_of,
    situation_of,
    text_of,
)

HGX = "hgx-h100"
ASKED = '[ "$1" = --version ] && exit 0; [ "$1" = prolog ] || exit 3; [ "$2" = --log-only ] && exit 0'


@pytest.mark.parametrize(
    ("check", "options", "status", "logged"),
    [
        (f"{ASKED}; exit 1", "--log-only", 0, ""),
        (f"{ASKED}; exit 0", "", 0, ""),
        (f"{ASKED}; exit 1", "", 1, ""),
        (f'{ASKED}; [ "$2 $3" = "--heal --no-drain" ] && exit 1', "'--heal --no-drain'", 1, ""),
        ("exit 3", "", 0, "has no result (exit status 3)"),
        ("exit 1", "", 0, "has no result (exit status 1: it cannot start)"),
        ("sleep 30", "", 0, "did not finish within 0.2 s"),
        ("kill -9 $$", "", 0, "was killed (SIGKILL)"),
        ("kill -11 $$", "", 0, "has no result (exit status 139)"),
        (None, "", 0, "gdrtop is not installed"),
    ],
)
def test_the_prolog_stops_a_job_only_if_asked_to(
    tmp_path: Path, check: str | None, options: str, status: int, logged: str
) -> None:
    script = text_of("slurm-prolog", request_of(HGX))
    for old, new in (
        ("PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", f"PATH={tmp_path}"),
        ("OPTIONS=--log-only", f"OPTIONS={options}"),
        ("LIMIT_SECONDS=60", "LIMIT_SECONDS=0.2"),
    ):
        assert script.count(old) == 1
        script = script.replace(old, new)
    for tool in ("sh", "timeout", "sleep"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    programs = {"logger": f'echo "$@" >> {tmp_path}/log', **({} if check is None else {"gdrtop": check})}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    ended = subprocess.run(["/bin/sh", "-c", script], capture_output=True, env={"SLURM_JOB_ID": "7"})
    assert (ended.returncode, ended.stdout) == (status, b"")
    assert ended.stderr == b"" or (check and check.startswith("kill"))  # the shell itself reports a signal
    log = tmp_path / "log"
    assert logged in (log.read_text() if log.exists() else "")
    assert log.exists() == bool(logged)


def prolog_beside(*prologs: str, config: str = "/etc/slurm/slurm.conf") -> str:
    """The script's text for a node whose slurm.conf has these Prologs already."""
    slurm = SlurmFacts(ABSENT, config, prologs or ABSENT, "MEMLOCK,NOFILE")
    return text_of("slurm-prolog", request_of(changed(situation_of(HGX), slurm=slurm)))


def test_the_prolog_mentions_what_slurm_conf_already_has() -> None:
    text = prolog_beside("/etc/slurm/own.sh", "second.sh")
    assert "already has a Prolog: /etc/slurm/own.sh, /etc/slurm/second.sh" in text
    assert "PropagateResourceLimitsExcept" not in text
    lines = text.splitlines()
    first, second, change = (
        next(number for number, line in enumerate(lines) if words in line)
        for words in (
            "/etc/slurm/own.sh /etc/slurm/prolog.d/own.sh",
            "/etc/slurm/second.sh /etc/slurm/prolog.d/second.sh",
            "Prolog=/etc/slurm/prolog.d/*",
        )
    )
    assert first < second < change
    assert "in place of the other Prolog lines" in lines[change]
    unread = text_of("slurm-prolog", request_of(changed(situation_of(HGX), slurm=ABSENT)))
    assert "PropagateResourceLimitsExcept=MEMLOCK" in unread


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("/opt/site/prolog.d/*", "FILE /opt/site/prolog.d/50-gdrtop.sh"),
        ("prolog.d/*.sh", "FILE /etc/slurm/prolog.d/50-gdrtop.sh"),
        ("/opt/p/[0-9]*.py", "FILE /opt/p/NAME    with a NAME that /opt/p/[0-9]*.py matches"),
    ],
)
def test_a_directory_of_prologs_gets_one_script_more(pattern: str, place: str) -> None:
    text = prolog_beside("/etc/slurm/own.sh", pattern)
    assert place in text
    assert "Prolog=" not in text
    assert "reverse alphabetical order" in text.replace("\n#       ", " ")


def test_slurmctld_sends_a_configless_node_no_pattern() -> None:
    configless = "/run/slurm/conf/slurm.conf"
    for present in ((), ("/opt/own.sh",)):
        text = prolog_beside(*present, config=configless)
        assert "Prolog=50-gdrtop.sh" in text
        assert "prolog.d" not in text
        assert ("Leave that line" in text) == bool(present)
    assert "FILE /opt/site/50-gdrtop.sh" in prolog_beside("/opt/site/*", config=configless)


def test_the_prolog_loads_peermem_where_the_host_owns_the_driver() -> None:
    loading = text_of("slurm-prolog", request_of(HGX, PEERMEM))
    assert "modprobe nvidia_peermem" in loading
    assert "# Slurm Prolog: load nvidia_peermem if it is missing, and check" in loading
    assert "modprobe" not in text_of("slurm-prolog", request_of(HGX, DMABUF))
    assert "modprobe" not in text_of("slurm-prolog", request_of(HGX, PEERMEM, driver=OPERATOR))
