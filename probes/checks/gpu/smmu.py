"""The SMMU of Arm nodes, by which GPUs of Grace, Vera and GB10 use the page tables of processes (SVA)."""

from __future__ import annotations

from dataclasses import replace

from probes.base.evidence import Evidence
from probes.base.unknown import known, map_known
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.facts.kernel.release import SMMU_SVA_OPTION
from probes.facts.pci.functions import PciKind
from probes.plans.boot import command_line_steps
from probes.plans.common import reboot_plan, reboot_step
from probes.queries.finding import Area, Outcome, end_with, found, need, passed
from probes.queries.kernel_log import age_of, found_in_log, log_messages
from probes.queries.modules import module_messages
from probes.queries.pcie_paths import gpus_and_nics, is_direct, is_gb10, is_grace
from probes.snapshot.examination import Examination

AREA = Area("gpu", __package__)
_NOT_NEEDED = Evidence("NVML", "no GPU of Grace, Vera or GB10")
_WITHOUT_CONFIG = "lack of necessary kernel configs"
_PASID_WITH_PASSTHROUGH = (6, 11)


def _end_without_coherent_gpu(examination: Examination) -> None:
    """End the check on nodes whose GPUs have page tables of their own alone."""
    if not is_grace(examination) and not is_gb10(examination):
        need(examination.node.gpus, "the GPUs")
        end_with(passed(_NOT_NEEDED))


def _messages(examination: Examination) -> list[KernelMessage]:
    """Return what the driver logged about SVA since it was loaded."""
    messages = known(module_messages(examination, (LogKind.SMMU_SVA,)), ())
    return [message for message in messages if not age_of(examination, message, of_nics=False)[0]]


@AREA.critical("smmu-sva-missing", data_path=True)
def smmu_sva_missing(examination: Examination) -> Outcome:
    """Check the kernel's config for SVA, and the driver's log for its lack, on Grace, Vera and GB10."""
    _end_without_coherent_gpu(examination)
    messages = [message for message in _messages(examination) if _WITHOUT_CONFIG in message.text]
    source = f"/boot/config-{known(examination.node.kernel_release, '')}"
    has_option = map_known(examination.node.kernel, lambda kernel: kernel.smmu_sva)
    if not messages:
        if need(has_option, "the kernel's config"):
            return passed(Evidence(source, f"{SMMU_SVA_OPTION}=y"))
        if not is_gb10(examination):  # reports are of GB10
            failure = map_known(examination.node.gpudirect, lambda direct: direct.cuda_failure)
            if not need(failure, "CUDA's response"):
                return passed(
                    Evidence(source, f"{SMMU_SVA_OPTION} is not set"), Evidence("cuInit(0)", "no error")
                )
    return found(
        "The GPUs use the page tables of the CPU, and this kernel cannot share them. The driver then refuses "
        "every CUDA program.",
        *([] if has_option is True else [Evidence(source, f"{SMMU_SVA_OPTION} is not set")]),
        *(Evidence("the kernel log", message.text) for message in messages[:1]),
        fix=reboot_plan(
            "Boot another kernel",
            f"Boot NVIDIA's kernel for this platform, or build this one with {SMMU_SVA_OPTION}=y",
        ),
        takes=examination.usability.gpus,
        devices=examination.usability.gpus,
    )


@AREA.critical("smmu-sva-refused", data_path=True)
def smmu_sva_refused(examination: Examination) -> Outcome:
    """Find refusals in the kernel log, as with iommu.passthrough before Linux 6.11 without NVIDIA's patch."""
    _end_without_coherent_gpu(examination)
    log_messages(examination, LogKind.SMMU_SVA)
    messages = [message for message in _messages(examination) if _WITHOUT_CONFIG not in message.text]
    cmdline = known(map_known(examination.node.kernel, lambda kernel: kernel.cmdline), "")
    option = next((word for word in cmdline.split() if is_direct(word, arm=True)), "")
    is_passthrough = option or any(
        function.iommu_type == "identity"
        for function in gpus_and_nics(examination).values()
        if function.kind is PciKind.GPU
    )
    version = known(
        map_known(examination.node.kernel, lambda kernel: kernel.version), _PASID_WITH_PASSTHROUGH
    )
    if not is_passthrough:  # else the kernel warns about a device beside the GPU, at the end of a program
        messages = [message for message in messages if message.text.startswith("NVRM: ")]
    if not messages:
        return passed(Evidence("the kernel log", "no refusal since the driver was loaded"))
    cause = (
        "The driver could not enable SVA. The SMMU is disabled in the firmware, or the kernel does not "
        "support it."
    )
    fix = None
    if is_passthrough and version < _PASID_WITH_PASSTHROUGH:
        cause = (
            f"With {option or 'passthrough'}, the SMMU has no page tables to share. Linux 6.11 can do both, "
            "and so can NVIDIA's newer 6.8 kernels."
        )
        fix = reboot_plan(
            "Let the SMMU translate, or boot a newer kernel",
            *command_line_steps(examination, "iommu", "iommu.passthrough=0", option),
            reboot_step("Reboot; gdrtop then reads the kernel log again"),
            note="Linux 6.11 or newer needs no change of the option.",
        )
    outcome = found_in_log(examination, messages, cause, fix)
    return replace(outcome, takes=outcome.devices or examination.usability.gpus)
