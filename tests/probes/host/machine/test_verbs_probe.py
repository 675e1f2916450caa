"""Questions to libibverbs and libmlx5, with fakes that have the real functions."""

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.library_probes import probe_data_direct, probe_dmabuf

SOURCE = r"""
#include <errno.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
struct thing { int number; };
static struct thing one = {1}, two = {2}, *list[3];
struct thing **ibv_get_device_list(int *count)
{ list[0] = &one; list[1] = &two; *count = 2; return list; }
void ibv_free_device_list(struct thing **l) { }
const char *ibv_get_device_name(struct thing *d) { return d->number == 1 ? "mlx5_0" : "mlx5_1"; }
struct thing *ibv_open_device(struct thing *d)
{
    fprintf(stderr, "libibverbs: Warning: noise\n"); printf("noise\n"); fflush(stdout);
    OPEN
    return d;
}
int ibv_close_device(struct thing *d) { return 0; }
struct thing *ibv_alloc_pd(struct thing *d) { return d; }
int ibv_dealloc_pd(struct thing *d) { return 0; }
#ifndef OLD
void *ibv_reg_dmabuf_mr(struct thing *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{ errno = (offset || length || iova || fd != -1 || access) ? EINVAL : pd->number == 1 ? EBADF : EOPNOTSUPP;
  return NULL; }
#endif
"""


MLX5 = r"""
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
struct context { int *device; };
bool mlx5dv_is_supported(int *device) { return *device != 2; }
#ifndef OLD
int mlx5dv_get_data_direct_sysfs_path(struct context *context, char *path, unsigned long size)
{ if (ERROR) return ERROR;
  snprintf(path, size, "/devices/pci0009:00/0009:03:00.%d", *context->device); return 0; }
#endif
"""
# A context is a pointer to its device first, as in struct ibv_context.
OPEN_CONTEXT = "static struct { struct thing *device; } of; of.device = d; return (void *) &of;"


def ask(device: str, library: str) -> Maybe[int]:
    return probe_dmabuf([device], library)[device]


@pytest.fixture
def build(tmp_path: Path) -> object:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")

    def library(on_open: str = "", *flags: str) -> str:
        source = tmp_path / "verbs.c"
        source.write_text(SOURCE.replace("OPEN", on_open))
        target = tmp_path / "libibverbs.so"
        subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", str(target), str(source)], check=True)
        return str(target)

    return library


def test_the_errno_shows_which_devices_support_dmabuf(build) -> None:  # type: ignore[no-untyped-def]
    library = build()
    answers = probe_dmabuf(["mlx5_0", "mlx5_1"], library)
    assert answers == {"mlx5_0": errno.EBADF, "mlx5_1": errno.EOPNOTSUPP}


def test_no_access_to_uverbs_needs_root(build) -> None:  # type: ignore[no-untyped-def]
    answer = ask("mlx5_0", build("errno = EACCES; return NULL;"))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NEEDS_ROOT


def test_a_crashing_provider_costs_one_answer(build) -> None:  # type: ignore[no-untyped-def]
    answer = ask("mlx5_0", build("abort();"))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.IO_ERROR


def test_a_provider_that_crashes_on_one_device_answers_for_the_others(build) -> None:  # type: ignore[no-untyped-def]
    answers = probe_dmabuf(["mlx5_0", "mlx5_1"], build("if (d->number == 1) abort();"))
    assert isinstance(answers["mlx5_0"], Unknown)
    assert answers["mlx5_1"] == errno.EOPNOTSUPP


@pytest.mark.slow
def test_a_provider_that_hangs_on_one_device_answers_for_the_others(build) -> None:  # type: ignore[no-untyped-def]
    answers = probe_dmabuf(["mlx5_0", "mlx5_1"], build("if (d->number == 1) for (;;) sleep(1);"))
    hung = answers["mlx5_0"]
    assert isinstance(hung, Unknown)
    assert hung.reason is Reason.TIMED_OUT
    assert answers["mlx5_1"] == errno.EOPNOTSUPP


def test_a_library_too_old_for_dmabuf_is_reported(build) -> None:  # type: ignore[no-untyped-def]
    answer = ask("mlx5_0", build("", "-DOLD"))
    assert isinstance(answer, Unknown)
    assert "rdma-core 34" in answer.detail


def test_a_device_unknown_to_the_library(build) -> None:  # type: ignore[no-untyped-def]
    answer = ask("mlx5_9", build())
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


def test_no_library_is_not_there() -> None:
    answer = ask("mlx5_0", "libno-such-verbs.so.9")
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


@pytest.mark.parametrize("name", ["", "../x", "mlx5\x1b", "a" * 65, "a b"])
def test_invalid_device_names_are_not_passed_on(name: str) -> None:
    answer = probe_dmabuf([name])[name]
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.MALFORMED


# Data Direct


@pytest.fixture
def build_mlx5(build, tmp_path: Path) -> object:  # type: ignore[no-untyped-def]
    def libraries(error: str = "0", *flags: str) -> tuple[str, str]:
        source, target = tmp_path / "mlx5.c", tmp_path / "libmlx5.so"
        source.write_text(MLX5.replace("ERROR", error))
        subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", str(target), str(source)], check=True)
        return build(OPEN_CONTEXT), str(target)

    return libraries


def test_the_path_of_the_function_and_none_for_other_nics(build_mlx5) -> None:  # type: ignore[no-untyped-def]
    answers = probe_data_direct(["mlx5_0", "mlx5_1"], build_mlx5())
    assert answers == {"mlx5_0": "/devices/pci0009:00/0009:03:00.1", "mlx5_1": ""}
    assert probe_data_direct(["mlx5_0"], build_mlx5("ENODEV")) == {"mlx5_0": ""}


@pytest.mark.parametrize(
    ("error", "flags", "reason", "detail"),
    [
        ("0", ("-DOLD",), Reason.NOT_THERE, "rdma-core 54"),
        ("EPROTONOSUPPORT", (), Reason.NOT_THERE, "Linux 6.12"),
        ("EPERM", (), Reason.NEEDS_ROOT, "no access"),
    ],
)
def test_why_the_function_is_unknown(
    build_mlx5,  # type: ignore[no-untyped-def]
    error: str,
    flags: tuple[str, ...],
    reason: Reason,
    detail: str,
) -> None:
    answer = probe_data_direct(["mlx5_0"], build_mlx5(error, *flags))["mlx5_0"]
    assert isinstance(answer, Unknown)
    assert answer.reason is reason
    assert detail in answer.detail
