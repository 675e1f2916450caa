"""The libcuda probe, with a fake library that has the real functions."""

import shutil
import subprocess
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.machine.library_probes import probe_cuda
from probes.host.protocol import CudaGpu

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int cuInit(unsigned flags) { printf("noise\n"); fflush(stdout); INIT return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetPCIBusId(char *text, int length, int device)
{ snprintf(text, length, "00000000:%02X:00.0", 0x1b + device); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    if (attribute != 116 && attribute != 124) return 1;
    if (attribute == 124 && OLD) return 1;
    *value = attribute == 116 ? 1 : device;
    return 0;
}
"""


@pytest.fixture
def build(tmp_path: Path) -> object:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")

    def library(on_init: str = "", old: int = 0) -> str:
        source = tmp_path / "cuda.c"
        source.write_text(SOURCE.replace("INIT", on_init).replace("OLD", str(old)))
        target = tmp_path / "libcuda.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
        return str(target)

    return library


def test_every_gpu_is_asked_for_both_attributes_despite_noise(build) -> None:  # type: ignore[no-untyped-def]
    answer = probe_cuda(build())
    assert answer == (CudaGpu("0000:1b:00.0", True, False), CudaGpu("0000:1c:00.0", True, True))


def test_an_attribute_unknown_to_an_old_driver_is_unknown(build) -> None:  # type: ignore[no-untyped-def]
    answer = probe_cuda(build(old=1))
    assert not isinstance(answer, Unknown)
    assert answer[0].rdma_supported is True
    assert isinstance(answer[0].dmabuf_supported, Unknown)
    assert "124" in answer[0].dmabuf_supported.source


@pytest.mark.parametrize(
    ("on_init", "reason", "detail"),
    [
        ("return 802;", Reason.DRIVER_ERROR, "cuInit(0) returned 802"),
        ("abort();", Reason.IO_ERROR, "status"),
        ("exit(0);", Reason.IO_ERROR, "status"),
    ],
)
def test_a_failing_library_gives_a_reason(build, on_init: str, reason: Reason, detail: str) -> None:  # type: ignore[no-untyped-def]
    answer = probe_cuda(build(on_init))
    assert isinstance(answer, Unknown)
    assert answer.reason is reason
    assert detail in answer.detail


def test_a_hanging_library_is_killed(build, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("probes.host.machine.library_probes.CHILD_SECONDS", 0.3)
    answer = probe_cuda(build("for (;;) sleep(1);"))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.TIMED_OUT


def test_a_running_mps_daemon_is_left_alone(build) -> None:  # type: ignore[no-untyped-def]
    body = 'if (strcmp(getenv("CUDA_MPS_PIPE_DIRECTORY"), "/dev/null")) return 999;'
    assert not isinstance(probe_cuda(build(body)), Unknown)


def test_no_library_is_not_there() -> None:
    answer = probe_cuda("libno-such-cuda.so.9")
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE
