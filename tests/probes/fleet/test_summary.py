import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.fleet.summary import from_json, to_json
from probes.fleet.traits import Trait
from tests.support.fleet_nodes import simulated
from tests.support.tiers import USUAL_NODES

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("label", [*USUAL_NODES, "hgx-h100+xid-79-fell-off-bus"])
def test_a_summary_comes_back_from_json_as_it_was(label: str) -> None:
    summary = simulated(label)
    assert from_json(json.loads(json.dumps(to_json(summary)))) == summary


def test_unknown_values_and_figures_come_back_with_their_reasons() -> None:
    traits = (
        Trait("acs", Unknown(Reason.NEEDS_ROOT, "", "the kernel: hides it")),
        Trait("iommu", Unknown(Reason.IO_ERROR)),
        Trait("bandwidth", 372.4, "write bandwidth, GPU0 mlx5_0"),
    )
    summary = replace(simulated(), traits=traits)
    encoded = json.loads(json.dumps(to_json(summary)))
    assert encoded["traits"][0] == {
        "fact": "acs",
        "value": None,
        "unknown": {"value": "needs root: the kernel: hides it"},
    }
    assert from_json(encoded) == summary


@pytest.mark.slow
@given(JSON)
def test_no_json_stops_the_reader(content: Any) -> None:
    assert from_json(content) is None


@pytest.mark.slow
@given(st.sampled_from(sorted(to_json(simulated()))), JSON)
def test_a_damaged_field_gives_a_summary_or_none(name: str, content: Any) -> None:
    damaged = from_json({**to_json(simulated()), name: content})
    assert damaged is None or from_json(json.loads(json.dumps(to_json(damaged)))) == damaged


def test_control_characters_of_a_file_reach_no_summary() -> None:
    encoded = to_json(simulated())
    encoded["name"] = "gpu1\x1b[31m"
    encoded["traits"] = [{"fact": "kernel", "value": "6.8\x1b]0;x\x07" + "9" * 9999}]
    summary = from_json(encoded)
    assert summary is not None
    assert summary.name.isprintable()
    assert str(summary.traits[0].value).isprintable()
    assert len(str(summary.traits[0].value)) <= 200
