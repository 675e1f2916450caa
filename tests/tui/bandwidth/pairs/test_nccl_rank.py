"""The ranks of all-reduce call libcuda and libnccl as their headers say: small libraries check each call."""

import subprocess
import sys
from pathlib import Path

import pytest

from probes.bandwidth.model.limits import Limit
from probes.fleet.collective import RingNode, RingSettings, rank_commands
from probes.fleet.rails import Rail
from probes.host.remote.transport import plain_source
from tests.support.process_families import LONG, to_the_end
from tests.tui.bandwidth.pairs.loopback import loopback
from tui.bandwidth.pairs import nccl_rank
from tui.bandwidth.pairs.nccl_rank import FAILED_MARK, ID_MARK
from tui.bandwidth.pairs.nccl_session import rank_program

CUDA = r"""
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
static int current = -1;
static void *blocks[64]; static int count;
int current_device(void) { return current; }
int cuInit(unsigned flags) { return flags; }
int cuDeviceGetCount(int *number) { *number = 2; return 0; }
int cuDeviceGet(int *device, int number) { *device = number + 10; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device)
{ *context = (void *)(0x700000000000 + device); return 0; }
int cuCtxSetCurrent(void *context) { current = (int)((size_t)context - 0x700000000000) - 10; return 0; }
int cuStreamCreate(void **stream, unsigned flags)
{ *stream = (void *)(0x600000000000 + current); return flags != 1; }
int cuMemAlloc_v2(unsigned long long *address, size_t size)
{ void *block = malloc(size); blocks[count++] = block; *address = (size_t)block; return 0; }
int cuMemsetD32_v2(unsigned long long address, unsigned value, size_t number)
{ for (size_t i = 0; i < number; i++) memcpy((char *)address + 4 * i, &value, 4); return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size)
{ memcpy(to, (void *)from, size); return 0; }
int cuStreamSynchronize(void *stream) { return stream != (void *)(0x600000000000 + current); }
int cuCtxSynchronize(void) { return 0; }
"""
NCCL = r"""
#include <stddef.h>
#include <stdio.h>
#include <string.h>
int current_device(void);
typedef struct { char internal[128]; } ncclUniqueId;
static int depth, ranks;
const char *ncclGetErrorString(int code) { return code == 5 ? "invalid usage" : "no error"; }
int ncclGetUniqueId(ncclUniqueId *id)
{ for (int i = 0; i < 128; i++) id->internal[i] = i % 7 ? i : 0; return 0; }
int ncclGroupStart(void) { depth++; return 0; }
int ncclGroupEnd(void) { depth--; return 0; }
int ncclCommInitRank(void **comm, int number, ncclUniqueId id, int rank)
{ for (int i = 0; i < 128; i++) if (id.internal[i] != (char)(i % 7 ? i : 0)) return 4;
  if (depth != 1 || rank % 2 != current_device()) return 4;
  ranks = number; *comm = (void *)(0x500000000000 + current_device());
  printf("h:1:2 [%d] NCCL INFO comm rank %d of %d\n", current_device(), rank, number); return FAILS; }
int ncclAllReduce(
    const void *send, void *receive, size_t count, int type, int operation, void *comm, void *stream)
{ if (depth != 1 || type != 7 || operation || comm != (void *)(0x500000000000 + current_device())
      || stream != (void *)(0x600000000000 + current_device())) return 4;
  for (size_t i = 0; i < count; i++) ((float *)receive)[i] = ((const float *)send)[i] * ranks;
  if (WRONG) ((float *)receive)[count - 1] = 0; return 0; }
"""


def built(folder: Path, fails: int = 0, wrong: int = 0) -> tuple[str, str]:
    cuda, nccl = folder / "libcuda.so.1", folder / "libnccl.so.2"
    for source, library, more in ((CUDA, cuda, ()), (NCCL, nccl, (str(cuda), f"-Wl,-rpath,{folder}"))):
        definitions = (f"-DFAILS={fails}", f"-DWRONG={wrong}")
        command = (
            "cc",
            "-shared",
            "-fPIC",
            "-x",
            "c",
            *definitions,
            "-o",
            str(library),
            "-",
            "-x",
            "none",
            *more,
        )
        subprocess.run(command, input=source.encode(), check=True)
    return str(cuda), str(nccl)


def run(libraries: tuple[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    source = plain_source(Path(nccl_rank.__file__))  # as nodes get it
    command = (sys.executable, "-I", "-S", "-c", source, *libraries, *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_first_ranks_print_the_id_nccls_lines_and_rows(tmp_path: Path) -> None:
    libraries = built(tmp_path)
    first = run(libraries, "0", "4", "new", "65536:5", "262144:2")
    assert first.returncode == 0, first.stdout + first.stderr
    lines = first.stdout.splitlines()
    (identity,) = (line[len(ID_MARK) :] for line in lines if line.startswith(ID_MARK))
    assert len(identity) == 256
    assert identity.startswith("00010203040506000809"), "bytes behind a zero are kept"
    assert sum("NCCL INFO comm rank" in line for line in lines) == 2
    rows = [line.split() for line in lines if line[:1].isdigit()]
    assert [row[:5] for row in rows] == [
        ["65536", "16384", "float", "sum", "-1"],
        ["262144", "65536", "float", "sum", "-1"],
    ]
    assert all(float(row[7]) == pytest.approx(float(row[6]) * 1.5, rel=0.1, abs=0.02) for row in rows)
    second = run(libraries, "2", "4", identity, "65536:5")
    assert second.returncode == 0, second.stdout
    assert "rank 3 of 4" in second.stdout
    assert not any(line[:1].isdigit() for line in second.stdout.splitlines())


def test_wrong_elements_fail(tmp_path: Path) -> None:
    ended = run(built(tmp_path, wrong=1), "0", "4", "new", "65536:5")
    assert ended.returncode == 1
    assert f"{FAILED_MARK}2 elements of a 65536-byte message were wrong: data was corrupted" in ended.stdout


def test_a_call_that_fails_is_named_with_nccls_words(tmp_path: Path) -> None:
    ended = run(built(tmp_path, fails=5), "0", "4", "new", "65536:5")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) != (0, "")
    assert f"{FAILED_MARK}ncclCommInitRank returned 5 (invalid usage)" in ended.stdout


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    ended = run((str(tmp_path / "none.so"), "x.so"), "0", "4", "new", "65536:5")
    assert f"{FAILED_MARK}cannot load {tmp_path}/none.so" in ended.stdout


def test_it_runs_from_memory_behind_a_connection(tmp_path: Path) -> None:
    built(tmp_path)
    rail = Rail(0, "mlx5_0", 1, "0000:01:00.0", "GPU0", "0000:02:00.0", "InfiniBand", "ib0", True)
    nodes = [RingNode(name, (0, 1), (rail,), {0: 0}, {0: Limit(())}) for name in ("gpu1", "gpu2")]
    settings = RingSettings(sizes=(65536,))
    processes = loopback()

    def started(place: int, identity: str) -> list[str]:
        env, *words = rank_commands(nodes, (), settings, rank_program(), identity)[place]
        process = processes.start([env, f"LD_LIBRARY_PATH={tmp_path}", *words], LONG)
        lines, ended = to_the_end(process)
        assert ended.exit_status == 0, lines
        return lines

    try:
        lines = started(0, "new")
        (identity,) = (line[len(ID_MARK) :] for line in lines if line.startswith(ID_MARK))
        assert any("rank 1 of 4" in line for line in lines)
        assert any("rank 3 of 4" in line for line in started(1, identity))
    finally:
        processes.close()
