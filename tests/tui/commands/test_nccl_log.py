"""`gdrtop nccl-log` as an admin uses it: files, patterns, pipes, compressed and growing logs."""

import fcntl
import gzip
import io
import os
import signal
import subprocess
import sys
import termios
import time
import zlib
from array import array
from pathlib import Path

import pytest

from probes.nccl.log.facts import State
from tests.support.documents import valid
from tests.support.nccl_logs import channel, info
from tests.support.nccl_versions import TAGS, completion, log_of
from tui.cli import main
from tui.command_line.options import OutputOptions
from tui.commands import nccl_log
from tui.commands.nccl_log import write_nccl_log
from tui.files import log_files as files_module
from tui.files.log_files import UnreadableLog, chunks_of_log, log_files

ROOT = Path(__file__).parents[3]
GOOD = info("NCCL version 2.26.2+cuda12.2", channel(), channel("receive", peers="8[0] -> 0[0]"))


TEXT = OutputOptions()


def shown(*names: Path | str, options: OutputOptions = TEXT) -> tuple[int, str, str]:
    """Exit status, output and what stands on stderr."""
    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n"), io.StringIO()
    status = write_nccl_log([str(name) for name in names], out, options, errors, lambda: 1e9)
    out.seek(0)
    return status, out.read(), errors.getvalue()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_text(GOOD)
    return path


def test_the_verdict_is_the_first_line(good: Path) -> None:
    status, text, errors = shown(good)
    assert status == 0
    assert text.splitlines()[0] == "✓ GPUDirect RDMA: 2 of 2 channels on 1 of 1 rank"
    assert "2.26.2+cuda12.2 (job.log:1)" in text
    assert not errors


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([channel()], 0),
        ([channel(), channel(gdr=False)], 1),
        ([channel(gdr=False)], 2),
        (["Using network IB"], 3),
    ],
)
def test_the_exit_status_is_the_verdict(tmp_path: Path, lines: list[str], status: int) -> None:
    (tmp_path / "log").write_text(info(*lines))
    assert shown(tmp_path / "log")[0] == status


@pytest.mark.parametrize("tag", TAGS[::5])
@pytest.mark.parametrize("width", ["60", "120"])
def test_text_fits_and_errors_have_cause_and_fix(
    tmp_path: Path, tag: str, width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    error = f"node1:100:200 [0] net_ib.cc:1 NCCL WARN {completion(tag)}\n"
    (tmp_path / "log").write_text(log_of(tag) + error)
    status, text, _ = shown(tmp_path / "log")
    assert status == 1
    assert max(map(len, text.splitlines())) <= int(width)
    for label in ("Completion error 12 (IBV_WC_RETRY_EXC_ERR)", "Cause ", "Fix ", "Line "):
        assert label in text
    for section in ("Job", "Channels with GPUDirect RDMA", "Settings from the environment"):
        assert section in text.splitlines()


def test_the_json_is_what_the_schema_says(tmp_path: Path) -> None:
    for tag in TAGS[::3]:
        log = tmp_path / tag
        log.write_text(log_of(tag) + f"node1:100:200 [0] net_ib.cc:1 NCCL WARN {completion(tag)}\n")
        status, text, _ = shown(log, options=OutputOptions(json=True))
        document = valid("nccl-log", text)
        assert document["exit_status"] == status == 1
        assert document["verdict"]["state"] == "partly"
        assert document["log"]["send"] == {"gdr": 2, "staged": 1, "unknown": 0}
        assert document["log"]["files"][0]["name"] == str(log)


def test_ascii(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(log_of("2.26.2"))
    assert shown(tmp_path / "log", options=OutputOptions(ascii=True))[1].isascii()


def test_several_files_are_one_job_and_lines_name_their_file(tmp_path: Path) -> None:
    for number in (1, 2):
        log = info(channel(gdr=number == 1)).replace("node1", f"node{number}")
        (tmp_path / f"nccl.node{number}.{number}7.log").write_text(log)
    for names in ([f"{tmp_path}/nccl.%h.%p.log"], [f"{tmp_path}/*.log"], sorted(tmp_path.glob("*"))):
        status, text, _ = shown(*names)
        assert status == 1
        assert "1 of 2 channels on 1 of 2 ranks" in text
        assert "nccl.node2.27.log:1" in text


def test_a_file_is_read_once(good: Path) -> None:
    assert len(log_files([str(good), f"{good.parent}/*.log", f"{good.parent}/./job.log"])) == 1
    assert log_files(["-", "-"]) == ["-"]


def test_a_percent_sign_can_be_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a%h.log"
    path.write_text(GOOD)
    (tmp_path / "abc.log").write_text("")
    assert log_files([str(path)]) == [str(path)]
    assert log_files([f"{tmp_path}/a%%*.log"]) == [str(path)]


def test_gzip_is_read_also_in_several_parts_and_cut_off(tmp_path: Path) -> None:
    packed = gzip.compress(GOOD.encode()) + gzip.compress(info(channel()).encode())
    (tmp_path / "whole.gz").write_bytes(packed)
    assert shown(tmp_path / "whole.gz")[1].startswith("✓ GPUDirect RDMA: 3 of 3")
    filled = info(*(channel() for _ in range(5000)), *(channel(gdr=False) for _ in range(5000))).encode()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(filled)[:-300])
    assert shown(tmp_path / "cut.gz")[0] in (0, 1)  # of what is there
    (tmp_path / "bad.gz").write_bytes(packed + b"rubbish" * 9)
    status, _, errors = shown(tmp_path / "bad.gz")
    assert status == 3  # a part is missing, so not all is known
    assert "bad.gz cannot be read: the gzip data is damaged" in errors


def test_a_small_file_that_expands_to_gigabytes_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    assert max(map(len, chunks_of_log(f"{tmp_path}/bomb.gz"))) <= 1 << 20


def test_a_long_gzip_member_before_others_ends(tmp_path: Path) -> None:
    content = bytes((number * 7919) % 251 for number in range(3 << 20))
    (tmp_path / "members.gz").write_bytes(gzip.compress(content) + gzip.compress(b"end"))
    assert b"".join(chunks_of_log(f"{tmp_path}/members.gz")) == content + b"end"


def test_other_compressions_name_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(files_module, "import_module", absent)
    for magic, words in (
        (b"\x28\xb5\x2f\xfd", "zstd -dc"),
        (b"BZh9", "bzip2 -dc"),
        (b"\xfd7zXZ\0", "xz -dc"),
    ):
        (tmp_path / "log").write_bytes(magic + b"0123456789")
        status, text, errors = shown(tmp_path / "log")
        assert status == 3
        assert not text
        assert words in errors


def test_zstd_is_read_where_python_has_it(tmp_path: Path) -> None:
    zstd = pytest.importorskip("compression.zstd")
    (tmp_path / "log.zst").write_bytes(zstd.compress(GOOD.encode()))
    assert shown(tmp_path / "log.zst")[0] == 0


@pytest.mark.slow
def test_zstd_needs_only_what_its_decompressor_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Decompressor:
        """The interface of compression.zstd.ZstdDecompressor, by zlib behind four bytes."""

        def __init__(self) -> None:
            self._stream = zlib.decompressobj()
            self._skip, self._rest = 4, b""
            self.eof, self.needs_input, self.unused_data = False, True, b""

        def decompress(self, data: bytes, max_length: int) -> bytes:
            data = self._rest + data
            skipped, self._skip = min(self._skip, len(data)), max(0, self._skip - len(data))
            plain = self._stream.decompress(data[skipped:], max_length)
            self._rest = self._stream.unconsumed_tail
            self.eof, self.needs_input = self._stream.eof, not self._rest
            self.unused_data = self._stream.unused_data
            return plain

    class Module:
        ZstdDecompressor = Decompressor

    monkeypatch.setattr(files_module, "import_module", lambda name: Module)
    part = b"\x28\xb5\x2f\xfd" + zlib.compress(GOOD.encode() * 9_000)
    (tmp_path / "log.zst").write_bytes(part + part)
    assert shown(tmp_path / "log.zst")[1].startswith("✓ GPUDirect RDMA: 36000 of 36000")


@pytest.mark.parametrize("name", ["missing.log", "*.none", "nccl.%h.log"])
def test_a_missing_file_is_an_error(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nccl-log", f"{tmp_path}/{name}"]) == 3
    assert "gdrtop: " in capsys.readouterr().err


def test_directories_and_devices_are_refused(tmp_path: Path) -> None:
    for name, words in ((str(tmp_path), "a directory"), ("/dev/zero", "neither a file nor a pipe")):
        with pytest.raises(UnreadableLog, match=words):
            list(chunks_of_log(name))


def test_one_unreadable_file_does_not_hide_the_others(good: Path, tmp_path: Path) -> None:
    status, text, errors = shown(good, tmp_path)
    assert status == State.UNKNOWN.value
    assert "2 of 2 channels" in text
    assert "could not be read" in text
    assert "a directory" in errors


def test_interrupted_reading_shows_what_was_read(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces(name: str, advance: object) -> object:
        yield GOOD.encode()
        raise KeyboardInterrupt

    monkeypatch.setattr(nccl_log, "chunks_of_log", pieces)
    status, text, errors = shown(good)
    assert status == 0
    assert "2 of 2 channels" in text
    assert "interrupted; this is what was read so far" in errors


def test_progress_is_shown_on_a_terminal_only(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(nccl_log, "_REFRESH_SECONDS", 0.0)
    errors = Terminal()
    write_nccl_log([str(good)], io.StringIO(), TEXT, errors)
    assert "MiB read; Ctrl-C shows what was found" in errors.getvalue()
    assert errors.getvalue().endswith("\r")


@pytest.mark.slow
def test_standard_input_and_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tui", "nccl-log", "-"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    for part in (GOOD, "more\n"):  # when the second part is taken, the first one was read
        process.stdin.write(part.encode())
        process.stdin.flush()
        while _waiting_bytes(process.stdin.fileno()):
            time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "2 of 2 channels" in out.decode()
    assert b"interrupted" in errors


def _waiting_bytes(pipe: int) -> int:
    """Bytes in a pipe that nobody has read yet."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_the_command_line_has_it(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nccl-log", str(good)]) == 0
    assert "2 of 2 channels" in capsys.readouterr().out
    assert main(["nccl-log"]) == 3
    assert "FILE" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named_with_its_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In a list of the logs of many nodes, the last part is no name."""
    (tmp_path / "node7").mkdir()
    main(["nccl-log", str(tmp_path / "node7" / "slurm.out"), str(tmp_path / "node7")])
    assert f"{tmp_path}/node7/slurm.out cannot be read" in capsys.readouterr().err


def test_a_pipe_that_only_matches_a_pattern_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nccl.a.log")
    (tmp_path / "nccl.b.log").write_text("")
    assert log_files([str(tmp_path / "nccl.%h.log")]) == [str(tmp_path / "nccl.b.log")]
    assert log_files([str(tmp_path / "nccl.a.log")]) == [str(tmp_path / "nccl.a.log")]
