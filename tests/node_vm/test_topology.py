"""The tree of both shapes, against lspci, numactl and rdma."""

import itertools
import re
from typing import Any

import pytest

from tests.node_vm.guest import Guest
from tests.node_vm.machine import Machine

Functions = dict[str, dict[str, str]]

# Nothing here changes the node, so that each question is asked once a shape.


@pytest.fixture(params=["two_sockets", "two_levels"], scope="module")
def machine(request: pytest.FixtureRequest) -> Machine:
    found: Machine = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def guest(machine: Machine) -> Guest:
    machine.guest.run("reset-node")
    return machine.guest


@pytest.fixture(scope="module")
def told(guest: Guest) -> dict[str, Any]:
    found: dict[str, Any] = guest.json("topo")
    return found


@pytest.fixture(scope="module")
def functions(guest: Guest) -> Functions:
    """lspci's own account of every function, by BDF; -PP gives the bridges on the way to it."""
    found: Functions = {}
    for block in guest.run("lspci", "-Dvmmnnk").strip().split("\n\n"):
        fields = dict(line.split(":\t", 1) for line in block.splitlines())
        found[fields.pop("Slot")] = fields
    for line in guest.run("lspci", "-DPP").splitlines():
        way = line.split()[0].split("/")
        domain = way[0].split(":")[0]
        found[f"{domain}:{way[-1]}" if len(way) > 1 else way[0]]["Way"] = line.split()[0]
    return found


def path_type(a: list[str], b: list[str], one_node: bool | None) -> str | None:
    """nvidia-smi's word for two ways from the root: by how much of them is shared.

    Only the last port differs: one switch. Part is shared: several switches. Nothing is: through the CPU.
    """
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))
    if shared == 0:
        # Other root ports of one root, of one NUMA node; else it depends on whether the node is known.
        if a[0].rpartition(":")[0] == b[0].rpartition(":")[0]:
            return "PHB"
        return None if one_node is None else "SYS"
    return "PIX" if shared == len(a) - 2 == len(b) - 2 else "PXB"


def test_every_gpu_and_nic_that_lspci_lists(
    functions: Functions, machine: Machine, told: dict[str, Any]
) -> None:
    gpus = sorted(bdf for bdf, fields in functions.items() if "[0302]" in fields["Class"])
    nics = sorted(bdf for bdf, fields in functions.items() if "[0207]" in fields["Class"])
    assert len(gpus) == machine.shape.gpu_count()
    assert len(nics) == machine.shape.nic_count()
    assert [gpu["bdf"] for gpu in told["gpus"]] == gpus
    assert [nic["bdf"] for nic in told["nics"]] == nics


def test_numa_nodes(functions: Functions, told: dict[str, Any]) -> None:
    for device in (*told["gpus"], *told["nics"]):
        named = functions[device["bdf"]].get("NUMANode")
        if named is None:  # lspci leaves out what the firmware does not name
            assert device["numa_node"] is None
            assert "-1" in device["unknown"]["numa_node"]
        else:
            assert device["numa_node"] == int(named)


def test_one_shape_has_a_numa_node_that_nobody_knows(machine: Machine, told: dict[str, Any]) -> None:
    second = None if machine.shape.second_numa_unknown else 1
    assert {gpu["numa_node"] for gpu in told["gpus"]} == {0, second}


def test_path_types_of_all_pairs(functions: Functions, told: dict[str, Any]) -> None:
    way = {bdf: fields["Way"].split("/") for bdf, fields in functions.items()}
    bdf_of = {nic["name"]: nic["bdf"] for nic in told["nics"]}
    ends = [*(gpu["bdf"] for gpu in told["gpus"]), *bdf_of.values()]
    types = {
        (bdf_of.get(p["from"], p["from"]), bdf_of.get(p["to"], p["to"])): p["smi"] for p in told["paths"]
    }
    assert len(types) == len(ends) * (len(ends) - 1) // 2
    for (a, b), word in types.items():
        nodes = {functions[a].get("NUMANode"), functions[b].get("NUMANode")}
        one_node = None if None in nodes else len(nodes) == 1
        assert word == path_type(way[a], way[b], one_node), (a, b)


def test_links_are_lspcis(guest: Guest, told: dict[str, Any]) -> None:
    slow = {}
    for block in guest.run("lspci", "-Dvv", "-d", "10de:").split("\n\n"):
        state = re.search(r"LnkSta:\s+Speed ([0-9.]+)GT/s(?: \(.*?\))?, Width x(\d+)", block)
        if state is not None and state.groups() != ("32", "16"):
            slow[block.split()[0]] = state.groups()
    assert list(slow.values()) == [("8", "8")]  # the one that dress-up degrades
    screen = guest.run_gdrtop("topo")
    assert all(bdf in screen for bdf in slow)


def test_rdma_devices_are_below_their_nics(guest: Guest, told: dict[str, Any]) -> None:
    listed = re.findall(r"link (\S+)/1 state (\S+) .*netdev (\S+)", guest.run("rdma", "link"))
    assert [
        (nic["name"], nic["ports"][0]["state"], nic["ports"][0]["netdev"]) for nic in told["nics"]
    ] == listed
    for nic in told["nics"]:
        assert nic["bdf"] in guest.run("readlink", f"/sys/class/infiniband/{nic['name']}/device")
        devinfo = guest.run("ibv_devinfo", "-d", nic["name"])
        guid = re.search(r"node_guid:\s+(\S+)", devinfo)
        assert guid is not None
        assert nic["node_guid"] == guid[1]


def test_a_gpus_best_nic_is_below_its_switch(told: dict[str, Any]) -> None:
    types = {frozenset((path["from"], path["to"])): path["smi"] for path in told["paths"]}
    for gpu in told["gpus"]:
        best = gpu["best_nics"][0]
        assert types[frozenset((gpu["bdf"], best))] == "PIX"
