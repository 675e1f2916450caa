"""What the numbers of SLURM_JOB_GPUS mean, by gres.conf; the orders are those of Slurm 22.05 and newer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.site import ClusterPlaces, Site, set_site
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.simulation.host import SimulatedHost
from probes.slurm.slurm_node import (
    GpuOrder,
    devices_of,
    gpus_meant,
    is_among,
    parse_gpu_order,
    parse_job,
    read_gpu_order,
)
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("NodeName=gpu01 Name=gpu File=/dev/nvidia[4-7]", GpuOrder((4, 5, 6, 7), False)),
        (
            "name=gpu file=/dev/nvidia3\nName=gpu File=/dev/nvidia1,/dev/nvidia0 # x",
            GpuOrder((3, 1, 0), False),
        ),
        ("NodeName=gpu[001-200],gpu[01-04] \\\n Name=gpu Type=h100 File=/dev/nvidia0", GpuOrder((0,), False)),
        ("AutoDetect=nvml", GpuOrder((), True)),
        ("AutoDetect=nvml\nNodeName=gpu01 AutoDetect=off Name=gpu File=/dev/nvidia2", GpuOrder((2,), False)),
        ("NodeName=gpu02 Name=gpu File=/dev/nvidia9\nAutoDetect=nvidia", GpuOrder((), True)),
        ("Name=nic Count=8\nName=gpu File=/dev/nvidia[0,2]", GpuOrder((0, 2), False)),
        ("NodeName=gpu02 Name=gpu File=/dev/nvidia0", Reason.NOT_THERE),
        ("Name=gpu File=/dev/dri/card0", Reason.MALFORMED),
        ("Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21", Reason.MALFORMED),
    ],
)
def test_gres_conf_is_read_for_the_node(text: str, wanted: GpuOrder | Reason) -> None:
    found = parse_gpu_order(text, "gpu01")
    assert (found.reason if isinstance(found, Unknown) else found) == wanted


@pytest.mark.parametrize(
    ("nodes", "has"),
    [
        ("gpu01", True),
        ("gpu[01-16]", True),
        ("login1,gpu[03,01]", True),
        ("gpu[1-16]", False),
        ("gpu[001-016]", False),
        ("gpu[02-16]", False),
        ("gpu", False),
        ("gpu[", False),
    ],
)
def test_sets_of_nodes(nodes: str, has: bool) -> None:
    assert is_among("gpu01", nodes) == has


@given(st.text(), st.text())
def test_any_file_is_read(text: str, node: str) -> None:
    parse_gpu_order(f"Name=gpu NodeName={node} File={text}", node)
    parse_gpu_order(text, node)


def with_minors(minors: tuple[int, ...]) -> Examination:
    """An hgx-h100 whose device files have these numbers, in the order of PCI addresses."""
    examination = examination_of("hgx-h100")
    facts = examination.node.gpus
    assert isinstance(facts, GpuFacts)
    gpus = tuple(replace(gpu, minor=minor) for gpu, minor in zip(facts.gpus, minors, strict=True))
    return replace(examination, node=replace(examination.node, gpus=replace(facts, gpus=gpus)))


CROSSED = (2, 3, 0, 1, 6, 7, 4, 5)
NO_FILE = Unknown(Reason.NOT_THERE, "gres.conf")


@pytest.mark.parametrize(
    ("order", "number", "places"),
    [
        (GpuOrder((4, 5, 6, 7), False), 0, [6]),
        (GpuOrder((4, 5, 6, 7), False), 1, [7]),
        (GpuOrder((4, 5, 6, 7), False), 4, []),
        (GpuOrder((7, 0), False), 0, [5]),
        (GpuOrder((), True), 0, [0, 2]),  # by PCI address, or by device file
        (GpuOrder((4, 5, 6, 7), True), 0, [4, 6]),
        (NO_FILE, 3, [3, 1]),
        (NO_FILE, 8, []),
    ],
)
def test_a_number_means_every_gpu_that_slurmd_can_have_there(
    order: Maybe[GpuOrder], number: int, places: list[int]
) -> None:
    examination = with_minors(CROSSED)
    gpus = [gpu.id for gpu in examination.topology.gpus]
    assert list(gpus_meant(number, examination, order)) == [gpus[place] for place in places]


def test_only_an_order_that_matters_is_unsure() -> None:
    some, every = parse_job({"SLURM_JOB_GPUS": "0,1"}), parse_job({"SLURM_JOB_GPUS": "0-7"})
    assert "gres.conf" in devices_of(some, with_minors(CROSSED), NO_FILE).unsure
    assert not devices_of(every, with_minors(CROSSED), NO_FILE).unsure
    assert not devices_of(some, with_minors(tuple(range(8))), NO_FILE).unsure
    assert not devices_of(some, with_minors(CROSSED), GpuOrder(CROSSED, False)).unsure


def test_gres_conf_is_beside_the_slurm_conf_that_the_site_names() -> None:
    host = SimulatedHost("hgx-h100")
    host.tree.add("/etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-7]\n")
    host.tree.add("/cm/etc/gres.conf", "Name=gpu File=/dev/nvidia[4-7]\n")
    set_site(Site(places=ClusterPlaces(slurm_conf="/cm/etc/slurm.conf")))
    try:
        assert read_gpu_order(host, "hgx-h100") == GpuOrder((4, 5, 6, 7), False)
    finally:
        set_site(Site(places=ClusterPlaces()))


def test_gres_conf_is_beside_slurm_conf() -> None:
    host = SimulatedHost("hgx-h100")
    assert isinstance(read_gpu_order(host, "hgx-h100"), Unknown)
    host.tree.add("/etc/slurm/gres.conf", "Include more.conf\n")
    host.tree.add("/etc/slurm/more.conf", "NodeName=hgx-h100 Name=gpu File=/dev/nvidia[4-7]\n")
    assert read_gpu_order(host, "hgx-h100") == GpuOrder((4, 5, 6, 7), False)
