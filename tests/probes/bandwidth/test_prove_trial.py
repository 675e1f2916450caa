"""What gdrtop prove tries, and why it leaves GPUs and NICs out."""

from dataclasses import replace
from functools import cache

import pytest

from probes.bandwidth.model.command import Refused
from probes.bandwidth.planning.node_settings import NoSuchDevice
from probes.bandwidth.prove import GpuTrial, plan_registration
from probes.base.unknown import Unknown
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.pilot import SteppedClock


@cache
def node(name: str = "hgx-h100") -> Examination:
    return examine(SimulatedHost(name, clock=SteppedClock()))


def trials(examination: Examination, gpu: str | None = None, nic: str | None = None) -> tuple[GpuTrial, ...]:
    planned = plan_registration(examination, gpu, nic)
    assert not isinstance(planned, Refused)
    return planned


def test_every_gpu_is_tried_with_every_nic() -> None:
    planned = trials(node())
    assert len(planned) == 8
    assert all(trial.is_tried and len(trial.words) == 10 for trial in planned)
    assert "train.py" in planned[0].users


def test_one_gpu_and_one_nic() -> None:
    bdf = trials(node())[1].bdf
    (trial,) = trials(node(), bdf, "mlx5_3")
    assert (trial.label, trial.words) == ("GPU1", ("7:mlx5_3",))


def test_a_nic_that_is_not_there_is_refused_with_the_names_of_the_others() -> None:
    refused = plan_registration(node(), nic="mlx5_\x1b[31m")
    assert isinstance(refused, NoSuchDevice)
    assert "\x1b" not in refused.reason
    assert "mlx5_9" in refused.reason


@pytest.mark.parametrize(
    ("name", "gpu", "why"),
    [
        ("hgx-h100+mig-with-gdr", 0, "MIG is on"),
        ("hgx-h100+gpu-without-driver-passed-through", 2, "its kernel driver is vfio-pci"),
        ("pcie-l40s+nvidia-uvm-not-loaded", 0, "nvidia_uvm is not loaded"),
        ("dgx-spark", 0, "GB10"),
    ],
)
def test_a_gpu_on_which_a_context_fails_or_does_harm_is_left_out(name: str, gpu: int, why: str) -> None:
    trial = trials(node(name))[gpu]
    assert why in trial.not_tried
    assert not trial.is_tried


def test_a_gpu_without_free_memory_is_left_out() -> None:
    gpus, live = node().node.gpus, node().reading.gpus
    assert not isinstance(gpus, Unknown)
    assert not isinstance(live, Unknown)
    bdf, total = gpus.gpus[0].bdf, gpus.gpus[0].memory_total_bytes
    assert isinstance(total, int)
    full = live | {bdf: replace(live[bdf], memory_used_bytes=total - (100 << 20))}
    examination = replace(node(), reading=replace(node().reading, gpus=full))
    assert "only 100 MiB" in trials(examination)[0].not_tried
    assert trials(examination)[1].is_tried


def test_slingshot_has_no_verbs_and_efa_no_remote_access() -> None:
    (nic, *_) = trials(node("slingshot"))[0].nics
    assert "no verbs" in nic.not_tried
    assert {word.partition(":")[0] for word in trials(node("aws-p5"))[0].words} == {"1"}
