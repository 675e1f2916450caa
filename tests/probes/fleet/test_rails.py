"""Rails have the same numbers on all nodes, whatever the names of the devices."""

from functools import cache

from probes.base.unknown import Reason, Unknown
from probes.fleet.rails import Rail, Rails, rails_of, with_equal_numbers
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine


@cache
def examined(name: str) -> Examination:
    return examine(SimulatedHost(name))


def maybe_rails(name: str) -> Rails:
    return rails_of(examined(name).node, examined(name).topology)


def rails(name: str) -> tuple[Rail, ...]:
    found = maybe_rails(name)
    assert isinstance(found, tuple)
    return found


def test_rails_follow_the_gpus_and_leave_out_the_nics_of_storage() -> None:
    found = rails("hgx-h100")
    assert [rail.number for rail in found] == list(range(8))
    assert [rail.gpu_label for rail in found] == [f"GPU{number}" for number in range(8)]
    assert [rail.nic for rail in found][3:5] == ["mlx5_3", "mlx5_5"]  # mlx5_4 is another kind
    assert all(rail.is_active and rail.link_layer == "InfiniBand" for rail in found)


def test_a_port_that_is_down_keeps_its_number() -> None:
    found = rails("hgx-h100+port-down")
    assert [rail.number for rail in found if not rail.is_active] == [1]
    assert len(found) == 8


def test_a_node_with_a_missing_nic_keeps_the_numbers_of_the_others() -> None:
    names = {"gpu1": "hgx-h100", "gpu2": "hgx-h100", "gpu3": "hgx-h100+nic-without-rdma-device"}
    found = with_equal_numbers({node: maybe_rails(name) for node, name in names.items()})
    whole, missing = found["gpu1"], found["gpu3"]
    assert isinstance(whole, tuple)
    assert isinstance(missing, tuple)
    assert len(missing) == 7
    places = {rail.bdf: rail.number for rail in whole}
    assert all(places[rail.bdf] == rail.number for rail in missing)
    assert {rail.number for rail in missing} != set(range(7))


def test_without_a_nic_that_verbs_can_use_the_rails_are_unknown() -> None:
    found = maybe_rails("slingshot")
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE
    assert with_equal_numbers({"x": found}) == {"x": found}
