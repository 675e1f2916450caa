"""The file of a recording: other tools read it, damage costs little, and hostile files are rejected."""

import gzip
import io
import json
import random
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.facts.node import probe_node
from probes.recording.archive import MAX_TOTAL_BYTES, ArchiveWriter, Manifest
from probes.recording.format import Question, RecordingError
from probes.recording.recording_host import Moment
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.snapshot.rates import read as take_reading
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read

MANIFEST = {
    "format": 1,
    "gdrtop": "0.1.0",
    "host": "node",
    "began_at": 1.7e9,
    "source": "live",
    "label": "",
    "redacted": False,
}
HEAD = {"moment": 0, "at": 1.7e9, "probed": True, "clock": [1.0]}


def valid(count: int = 3) -> bytes:
    clock = SteppedClock()
    return archive_of(moments_of(SimulatedHost("cloud-vm", clock=clock), clock, count))


VALID = valid()


def jsonl(*lines: object) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def packed(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    """Return a .tar.gz as other tools make it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            header = tarfile.TarInfo(member[0])
            header.size = len(member[1])
            archive.addfile(header, io.BytesIO(member[1]))
    return out.getvalue()


def with_moment(*lines: object, head: object = HEAD) -> bytes:
    moment = jsonl(head, *lines)
    return packed(("manifest.json", jsonl(MANIFEST)), ("moments/000000.jsonl", moment), ("end.json", b"{}"))


def link(name: str, kind: bytes, target: str) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, target
    return header


def test_tar_reads_it_and_every_line_is_json() -> None:
    with tarfile.open(fileobj=io.BytesIO(VALID), mode="r:gz") as archive:
        members = {member.name: member for member in archive}
        assert next(iter(members)) == "manifest.json"
        assert list(members)[-1] == "end.json"
        assert all(member.mode == 0o600 for member in members.values())
        for name in members:
            content = archive.extractfile(name)
            assert content is not None
            if name.startswith("moments/"):
                assert all(json.loads(line) for line in content.read().splitlines())
            elif name.startswith("blobs/"):
                assert sha256(content.read()).hexdigest() == name.removeprefix("blobs/")


def test_a_repacked_recording_can_be_read() -> None:
    with tarfile.open(fileobj=io.BytesIO(VALID), mode="r:gz") as archive:
        members = [
            (f"./{member.name}", content.read())
            for member in archive
            if (content := archive.extractfile(member)) is not None
        ]
    directories = [link("./", tarfile.DIRTYPE, ""), link("./moments", tarfile.DIRTYPE, "")]
    again = read(packed(*directories, *members))
    assert again == read(VALID)
    assert not again.damage


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.05, 0.2, 0.8, 0.9, 0.97, 0.99])
def test_everything_before_the_cut_of_a_truncated_file_is_shown(kept: float) -> None:
    whole = valid(8)
    cut = whole[: int(len(whole) * kept)]
    if kept < 0.5:  # in the midst of the first moment
        with pytest.raises(RecordingError, match="no moment is complete"):
            read(cut)
        return
    recording = read(cut)
    complete = read(whole)
    assert "damaged: only the first" in recording.damage
    assert recording.moments == complete.moments[: len(recording.moments)]
    host, same = ReplayHost(recording), ReplayHost(complete)
    for number in range(len(recording.moments)):
        host.seek(number)
        same.seek(number)
        node = probe_node(host)
        assert take_reading(host, node) == take_reading(same, node)


@pytest.mark.slow
def test_cuts_of_a_long_recording_lose_only_the_end() -> None:
    whole = valid(8)
    lengths = []
    for cut in range(len(whole) - 1, len(whole) // 2, -97):
        try:
            lengths.append(len(read(whole[:cut]).moments))
        except RecordingError:
            lengths.append(0)
    assert lengths == sorted(lengths, reverse=True)
    assert set(lengths) >= {1, 2, 3, 4, 5, 6, 7}


def test_a_flipped_bit_loses_nothing_before_it() -> None:
    whole = valid(8)
    damaged = bytearray(whole)
    damaged[len(whole) - len(whole) // 20] ^= 0x10
    recording = read(bytes(damaged))
    assert "checksum" in recording.damage or "truncated" in recording.damage
    assert 1 <= len(recording.moments) < 8
    assert recording.moments == read(whole).moments[: len(recording.moments)]


def test_a_member_without_its_checksum_adds_nothing() -> None:
    """A flipped bit can hide the end of a member; what follows is then read as if it belonged to it."""
    members, rest = [], VALID
    while rest:
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        members.append((rest, unpacker.decompress(rest)))
        rest = unpacker.unused_data
    last_moment, content = members[-2]
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    other = content.replace(b'"probed": ', b'"probed":\t')
    changed = packer.compress(other) + packer.flush(zlib.Z_SYNC_FLUSH)
    recording = read(VALID[: -len(last_moment)] + changed)
    assert recording.damage == "damaged: only the first 2 moments can be read (the file is truncated)"


def test_a_file_cut_in_its_first_moment_says_what_may_have_happened() -> None:
    with pytest.raises(RecordingError, match="killed while writing the file, or the file is an incomplete"):
        read(VALID[:2000])


def test_data_after_the_end_is_ignored() -> None:
    assert read(VALID + b"garbage") == read(VALID)


@pytest.mark.slow
def test_reading_long_answers_takes_little_more_memory_than_they_have() -> None:
    files = {f"/etc/file{number}": bytes([number]) * (4 << 20) for number in range(6)}
    moment = Moment(0, 1.7e9, True, (1.0,), {Question("file", (path,)): text for path, text in files.items()})
    content = archive_of([moment])
    tracemalloc.start()
    try:
        recording = read(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(recording.answers) == len(files)
    assert peak < 1.5 * sum(map(len, files.values()))


@pytest.mark.slow
def test_lists_take_little_more_memory_than_their_text() -> None:
    texts = [json.dumps([f"{number:02}{name:x}" for name in range(20_000)]) for number in range(20)]
    blobs = {sha256(text.encode()).hexdigest(): text for text in texts}
    lines = [{"ask": "names", "of": f"/sys/{number}", "blob": name} for number, name in enumerate(blobs)]
    content = packed(
        ("manifest.json", jsonl(MANIFEST)),
        *((f"blobs/{name}", text.encode()) for name, text in blobs.items()),
        ("moments/000000.jsonl", jsonl(HEAD, *lines)),
        ("end.json", b"{}"),
    )
    tracemalloc.start()
    try:
        host = ReplayHost(read(content))
        names = host.names("/sys/19")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert names == tuple(json.loads(texts[19]))
    assert peak < 4 * sum(map(len, texts))


@pytest.mark.slow
def test_a_recording_takes_no_more_memory_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"ask": "size", "of": f"/sys/{number}", "answer": number} for number in range(10_000)]
    content = with_moment(*lines)
    assert len(read(content).answers) == len(lines)
    monkeypatch.setattr("probes.recording.archive.MAX_MEMORY_BYTES", 4 << 20)
    with pytest.raises(RecordingError, match="takes more than 4 MiB of memory"):
        read(content)


@pytest.mark.slow
def test_what_was_recorded_can_be_read_in_the_memory_that_it_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("probes.recording.archive.MAX_MEMORY_BYTES", 6 << 20)
    pieces: list[bytes] = []
    writer = ArchiveWriter(pieces.append)
    writer.begin(Manifest(1, "0", "node", 1.7e9, "live", "", False))
    moments = (
        Moment(
            number,
            1.7e9 + number,
            True,
            (1.0 + number,),
            {Question("size", (f"/{number}/{path}",)): path for path in range(1000)},
        )
        for number in range(20)
    )
    written = [writer.add(moment) for moment in moments]
    writer.end(1.7e9, {})
    assert False in written
    assert len(read(b"".join(pieces)).moments) == written.count(True) > 1


def bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(bytes(1 << 20)) for _ in range((MAX_TOTAL_BYTES >> 20) + 1)]
    return b"".join((*pieces, packer.flush()))


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "not a .tar.gz file"),
    "text": (lambda: b"root:x:0:0:root:/root:/bin/bash\n" * 100, "not a .tar.gz file"),
    "an empty archive": (lambda: packed(), "no moment is complete"),
    "no tar": (lambda: gzip.compress(b"x" * 4096), "not a tar file"),
    "a way out": (lambda: packed(("../../etc/cron.d/x", b"")), "'../../etc/cron.d/x'"),
    "an absolute path": (lambda: packed(("/etc/passwd", b"")), "'/etc/passwd'"),
    "a way out after the manifest": (
        lambda: packed(("manifest.json", jsonl(MANIFEST)), ("moments/../x", b"")),
        "'moments/../x'",
    ),
    "a name with an escape sequence": (lambda: packed(("\x1b[2Jx", b"")), "unexpected member"),
    "a link": (lambda: packed(link("manifest.json", tarfile.SYMTYPE, "/etc/shadow")), "a link"),
    "a hard link": (lambda: packed(link("end.json", tarfile.LNKTYPE, "/etc/shadow")), "unexpected member"),
    "a device": (lambda: packed(link("moments/000000.jsonl", tarfile.CHRTYPE, "")), "unexpected member"),
    "a long name": (lambda: packed(("x" * 300, b"")), "unexpected member"),
    "a bomb": (bomb, "unpacks to more than"),
    "a moment first": (lambda: packed(("moments/000000.jsonl", jsonl(HEAD))), "not manifest.json"),
    "another version": (
        lambda: packed(("manifest.json", jsonl({**MANIFEST, "format": 2, "gdrtop": "9.0"}))),
        "format version 2, written by gdrtop 9.0",
    ),
    "no version": (lambda: packed(("manifest.json", jsonl({}))), "no format version"),
    "a manifest that is a list": (lambda: packed(("manifest.json", b"[]")), "no format version"),
    "a manifest without a host": (
        lambda: packed(("manifest.json", jsonl({**MANIFEST, "host": None}))),
        "host: expected text, got null",
    ),
    "two manifests": (lambda: packed(*[("manifest.json", jsonl(MANIFEST))] * 2), "two manifests"),
    "a time without end": (
        lambda: packed(("manifest.json", jsonl({**MANIFEST, "began_at": 1e300}))),
        "began_at: 1e+300 is out of range",
    ),
    "Latin-1": (lambda: packed(("manifest.json", b'{"format": 1, "host": "\xe9"}')), "not UTF-8"),
    "not JSON": (lambda: with_moment(head="x"), "moment 0, line 1: not a JSON object"),
    "nesting": (
        lambda: packed(("manifest.json", jsonl(MANIFEST)), ("moments/000000.jsonl", b"[" * 200_000)),
        "not JSON",
    ),
    "a gap": (
        lambda: packed(("manifest.json", jsonl(MANIFEST)), ("moments/000007.jsonl", jsonl(HEAD))),
        "moment 7 does not follow",
    ),
    "no question": (lambda: with_moment({"x": 1}), "moment 0, line 2: unknown kind of question"),
    "an unknown question": (lambda: with_moment({"ask": "write", "of": "/x"}), "question: 'write'"),
    "no answer": (lambda: with_moment({"ask": "file", "of": "/x"}), "no answer"),
    "a number for text": (lambda: with_moment({"ask": "file", "of": "/x", "answer": 1}), "expected text"),
    "text for a number": (lambda: with_moment({"ask": "size", "of": "/x", "answer": "1"}), "an integer"),
    "a huge number": (lambda: with_moment({"ask": "size", "of": "/x", "answer": 1 << 70}), "is out of range"),
    "infinity": (lambda: with_moment({"ask": "size", "of": "/x", "answer": float("inf")}), "not JSON"),
    "a path among names": (
        lambda: with_moment({"ask": "names", "of": "/x", "answer": ["../../etc"]}),
        "invalid file name",
    ),
    "a reason that is none": (
        lambda: with_moment({"ask": "size", "of": "/x", "answer": {"unknown": ["a"]}}),
        "expected a known reason",
    ),
    "half a dataclass": (lambda: with_moment({"ask": "nvml", "answer": {"gpus": [{}]}}), "gpus[0].index: is"),
    "a blob that is not there": (lambda: with_moment({"ask": "file", "of": "/x", "blob": "0" * 64}), "blob"),
    "a blob of another checksum": (
        lambda: packed(("manifest.json", jsonl(MANIFEST)), ("blobs/" + "0" * 64, b"x")),
        "does not match its name",
    ),
    "a line without end": (
        lambda: with_moment({"ask": "file", "of": "/x", "answer": "x" * (1 << 20)}),
        "longer than 1 MiB",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_a_clear_error(name: str) -> None:
    make, message = HOSTILE[name]
    with pytest.raises(RecordingError) as refusal:
        read(make())
    assert message in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_a_small_bomb_of_many_empty_members_ends_soon() -> None:
    with pytest.raises(RecordingError):
        read(gzip.compress(b"") * 50_000 + b"\x1f\x8b")


def test_hostile_text_is_cleaned_like_a_host_does() -> None:
    output = {"argv": ["x"], "exit_status": 0, "stdout": "\x1b[2J", "stderr": ""}
    recording = read(
        with_moment(
            {"ask": "run", "of": ["x"], "answer": output},
            {"ask": "size", "of": "/x", "answer": {"unknown": "not there", "detail": "\x1b]0;x\x07"}},
        )
    )
    host = ReplayHost(recording)
    assert "\x1b" not in str(host.run(["x"]))
    assert "\x1b" not in str(host.size("/x"))


def with_changed_figures(change: Callable[[dict[str, Any]], None]) -> ReplayHost:
    """Return a recorded node after a change of the GPUs' figures in the file."""
    clock = SteppedClock()
    (moment,) = moments_of(SimulatedHost("cloud-vm", clock=clock), clock)
    with tarfile.open(fileobj=io.BytesIO(archive_of([moment])), mode="r:gz") as archive:
        members = [
            (member.name, content.read())
            for member in archive
            if (content := archive.extractfile(member)) is not None
        ]

    def changed(line: bytes) -> bytes:
        fields: dict[str, Any] = json.loads(line)
        if fields.get("ask") == "nvml_live":
            for gpu in fields["answer"]:
                change(gpu)
        return json.dumps(fields).encode()

    members = [
        (name, b"\n".join(map(changed, content.splitlines())) if name.startswith("moments") else content)
        for name, content in members
    ]
    return ReplayHost(read(packed(*members)))


def test_fields_of_another_version_are_not_recorded_or_ignored() -> None:
    def change(gpu: dict[str, Any]) -> None:
        del gpu["power_watts"]
        gpu["of_a_later_version"] = {"x": 1}

    live = with_changed_figures(change).nvml_live()
    assert isinstance(live, tuple)
    assert str(live[0].power_watts) == "not recorded"


def only_recording_errors(content: bytes) -> None:
    refusal = ""
    try:
        recording = read(content)
    except RecordingError as error:
        refusal = str(error)
    assert refusal.isprintable()
    if refusal:
        return
    host = ReplayHost(recording)
    node = probe_node(host)
    take_reading(host, node)


@settings(max_examples=300)
@given(st.binary(max_size=2000))
@example(b"\x1f\x8b")
@example(b"\x1f\x8b\x08\x00" + b"\0" * 20)
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    only_recording_errors(content)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_no_damage_raises_anything_else(seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(VALID)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(content))
        if chance.random() < 0.5:
            content[place] = chance.randrange(256)
        else:
            del content[place : place + chance.randint(1, 2000)]
    only_recording_errors(bytes(content))


with gzip.open(io.BytesIO(VALID)) as _unpacked:
    PLAIN = _unpacked.read()


@pytest.mark.slow
@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_damage_with_valid_checksums_raises_nothing_else(seed: int) -> None:
    """Damage before packing: checksums match, but the content is bad."""
    chance = random.Random(seed)
    content = bytearray(PLAIN)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(content))
        content[place] = chance.choice(b'\0"{}[]:,019-exX\xff/.')
    only_recording_errors(gzip.compress(bytes(content), 1))


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["ask", "of", "answer", "blob", "unknown", "source", "gpus", "argv"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=10,
    ),
    st.sampled_from(["file", "names", "link", "size", "readable", "run", "nvml", "nvml_live", "is_root"]),
)
def test_no_json_raises_anything_else(value: object, kind: str) -> None:
    fields = {"ask": kind, "of": ["x"] if kind == "run" else "/x", "answer": value}
    only_recording_errors(with_moment(fields))
    only_recording_errors(with_moment(value))
