"""What logs of UCX, MPI and the like mean, where it depends on other lines or on what a line names."""

from __future__ import annotations

import pytest

from probes.messages.message import Weight
from tests.support.read_texts import found_in, read

NO_MODULE = "ib_md.c:1128 UCX  DEBUG mlx5_0: cuda GPUDirect RDMA is disabled\n"
MODULE = "ib_md.c:1128 UCX  DEBUG mlx5_0: cuda GPUDirect RDMA is enabled\n"
NO_DMABUF = (
    "ib_md.c:1149 UCX  DEBUG mlx5_0: ibv_reg_dmabuf_mr(fd=-1) returned Protocol not supported, dmabuf is not "
    "supported\n"
)
OTHER_NIC = "ib_md.c:1338 UCX  DEBUG mlx5_1: dmabuf is supported\n"
PSM3 = "node1:rank0: PSM3 can't open nic unit: 0 (err=23)\n"
ENDPOINT = (
    "create_vni_context(982)..: OFI endpoint open failed (ofi_init.c:982:create_vni_context:No memory)\n"
)
COMPLETION = "ib_mlx5_log.c:179 UCX ERROR {} on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)\n"
CRAY = "(GTL DEBUG: 1) {}: invalid argument, CUDA_ERROR_INVALID_VALUE, line no 369\n"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (NO_MODULE, "unknown"),
        (NO_DMABUF, "unknown"),
        (NO_MODULE + NO_DMABUF, "no-gdr"),
        (NO_MODULE + NO_DMABUF + OTHER_NIC, "unknown"),
        (NO_MODULE + MODULE + NO_DMABUF, "unknown"),
    ],
)
def test_ucx_cannot_use_gpudirect_rdma_only_without_module_and_dma_buf(text: str, path: str) -> None:
    assert read(text).proven.path == path


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("Local protection error", 4),
        ("WR flushed because QP in error state", 5),
        ("Bad response", 7),
        ("Invalid request", 9),
        ("Transport retry count exceeded", 12),
        ("Receive-no-ready retry count exceeded", 13),
        ("Remote side aborted", 16),
    ],
)
def test_the_words_of_ucx_for_a_completion_error_have_its_number(words: str, number: int) -> None:
    statement = found_in(COMPLETION.format(words))[f"ucx-completion-{number}"]
    assert statement.cause
    assert "NCCL_" not in statement.fix


def test_an_endpoint_that_fails_after_its_provider_follows() -> None:
    assert found_in(ENDPOINT)["mpich-ofi-endpoint"].weight is Weight.CRITICAL
    assert found_in(PSM3 + ENDPOINT)["mpich-ofi-endpoint"].weight is Weight.FOLLOWS


def test_a_queue_key_that_only_root_may_use_is_told_from_other_errors() -> None:
    line = "node1:rank0.a.out: Failed to modify UD QP to INIT on mlx5_0: {}\n"
    assert "Q_Key" in found_in(line.format("Operation not permitted"))["psm3-ud-qp"].cause
    assert "Q_Key" not in found_in(line.format("Invalid argument"))["psm3-ud-qp"].cause


def test_memory_that_cannot_be_shared_is_told_from_gpus_that_are_not_visible() -> None:
    assert "managed" in found_in(CRAY.format("cuIpcGetMemHandle"))["cray-mpich-ipc"].cause
    assert "only its own GPU" in found_in(CRAY.format("cuIpcOpenMemHandle"))["cray-mpich-ipc"].cause


@pytest.mark.parametrize(
    "line",
    [
        "cma_ep.c:88 process_vm_readv(pid=17 {0x14745e5ac800,61928}-->{0x150dba573e00,61928}) returned -1: "
        "Bad address\n",
        "[n:1:0:1] Caught signal 11 (Segmentation fault: invalid permissions for mapped object at address "
        "0x7f3985a40000)\n",
        "[n:1] Signal code: Invalid permissions (2)\n",
        "process_vm_readv: Bad address\n",
        "MPIDI_OFI_send_normal(372): OFI tagged senddata failed "
        "(ofi_send.h:372:MPIDI_OFI_send_normal:Bad address)\n",
    ],
)
def test_gpu_memory_that_a_library_takes_for_host_memory_is_named(line: str) -> None:
    (statement,) = found_in(line).values()
    assert "GPU memory" in statement.title + statement.cause
    assert statement.weight is Weight.CRITICAL
