"""GPUs of Grace, Vera and GB10, and what the kernel must share with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.queries.finding import Status
from tests.support.changed_facts import said, status, with_kernel, with_log
from tests.support.doctor import examination_of, findings_on

GRACE = examination_of("gb200")  # NVIDIA's 6.8 kernel with iommu.passthrough=1, which can do both
SPARK = examination_of("dgx-spark")
MISSING, REFUSED = "smmu-sva-missing", "smmu-sva-refused"
FAILED = "NVRM: GPU 0008:01:00.0: Enabling SMMU SVA feature failed"
NO_CONFIG = f"{FAILED} due to lack of necessary kernel configs."
WARNED = (
    "WARNING: CPU: 61 PID: 8130 at drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c:1237 "
    "arm_smmu_write_ctx_desc+0x1a8/0x1d0"
)


def test_the_cause_of_a_gb10_without_cuda_is_its_kernel() -> None:
    found = findings_on("dgx-spark+smmu-sva-missing")
    assert found[MISSING].takes
    assert "CONFIG_ARM_SMMU_V3_SVA=y" in str(found[MISSING].fix)
    assert "returned 3" in found["cuda-fails-to-start"].evidence[0].value
    assert found["cuda-fails-to-start"].part_of == MISSING


def test_a_config_that_cannot_be_read_is_unknown_unless_the_driver_has_said_it() -> None:
    hidden = with_kernel(GRACE, smmu_sva=Unknown(Reason.NOT_THERE, "/proc/config.gz"))
    assert status(MISSING, hidden) is Status.UNKNOWN
    logged = said(MISSING, with_log(hidden, NO_CONFIG))
    assert logged.status is Status.FOUND
    assert "lack of necessary kernel configs" in logged.evidence[-1].value


def test_a_grace_kernel_without_the_option_on_which_cuda_starts_is_no_finding() -> None:
    assert status(MISSING, with_kernel(GRACE, smmu_sva=False)) is Status.PASSED
    assert status(MISSING, with_kernel(SPARK, smmu_sva=False)) is Status.FOUND


@pytest.mark.parametrize("name", ["hgx-h100", "pcie-l40s"])
def test_gpus_with_page_tables_of_their_own_need_nothing(name: str) -> None:
    node = with_log(with_kernel(examination_of(name), smmu_sva=False), NO_CONFIG, WARNED)
    assert {status(MISSING, node), status(REFUSED, node)} == {Status.PASSED}


def test_passthrough_is_the_cause_before_linux_6_11() -> None:
    for line in (f"{FAILED}! ret: -22", WARNED):
        finding = said(REFUSED, with_log(GRACE, line))
        assert finding.status is Status.FOUND
        assert "iommu.passthrough=1" in finding.cause
        assert finding.takes
        assert "iommu.passthrough=0" in str(finding.fix)


def test_the_option_alone_proves_nothing() -> None:
    """Distributions have the patch in older kernels."""
    assert status(REFUSED, GRACE) is Status.PASSED


def test_a_newer_kernel_refuses_for_another_reason() -> None:
    newer = with_kernel(GRACE, version=(6, 14))
    assert "firmware" in said(REFUSED, with_log(newer, f"{FAILED}! ret: -19")).cause


def test_a_warning_about_the_device_beside_a_gpu_is_no_refusal() -> None:
    """NVIDIA/NV-Kernels pull request 347: a bridge in a GPU's group, with a translating SMMU."""
    translating = with_kernel(SPARK, cmdline="ro")
    assert status(REFUSED, with_log(translating, WARNED)) is Status.PASSED


def test_what_the_driver_said_before_it_was_loaded_again_is_over() -> None:
    again = with_log(
        GRACE, f"{FAILED}! ret: -22", "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580"
    )
    assert status(REFUSED, again) is Status.PASSED


def test_an_unread_log_is_unknown() -> None:
    assert status(REFUSED, replace(GRACE, kernel_log=Unknown(Reason.NEEDS_ROOT, "dmesg"))) is Status.UNKNOWN
