"""What nvidia-smi prints, as facts: of real nodes, of simulated ones, and of anything else."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown, known
from probes.host.nvml import NvmlGpu
from probes.host.remote.nvidia_smi import parse_facts, parse_live, with_capabilities, with_nvlinks
from probes.simulation.host import SimulatedHost
from tests.support.stand_in import smi_text

CAPTURES = sorted(Path(__file__).parents[5].glob("shared/machines/nvidia_smi/*qx-*.xml"))
TAGS = ("nvidia_smi_log", "gpu", "pci", "pci_gpu_link_info", "fb_memory_usage", "total", "processes", "uuid")
VALUES = (
    st.sampled_from(["81559 MiB", "16x", "N/A", "Enabled", "9" * 30 + " MiB", "-1", "", "&#27;[31m"])
    | st.text()
)
XML = st.recursive(
    VALUES.map(lambda text: text.replace("<", "&lt;")),
    lambda inner: st.builds(
        lambda tag, parts: f'<{tag} id="00000000:01:00.0">{"".join(parts)}</{tag}>',
        st.sampled_from(TAGS),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.text() | XML | XML.map(lambda text: f"<nvidia_smi_log>{text}</nvidia_smi_log>"))
@example("<nvidia_smi_log>\ud800</nvidia_smi_log>")
@example('<!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log>&b;</nvidia_smi_log>')
@example("<nvidia_smi_log>" + "<gpu>" * 50_000)
def test_any_text_is_facts_or_unknown(text: str) -> None:
    for found in (parse_facts(text), parse_live(text)):
        assert not isinstance(found, Unknown) or found.reason is Reason.MALFORMED
    facts = parse_facts(text)
    if not isinstance(facts, Unknown):
        for gpu in facts.gpus:
            shown = gpu.source if isinstance(gpu, Unknown) else gpu.bdf
            assert shown.isprintable()


@pytest.mark.skipif(not CAPTURES, reason="no output of real nodes here")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_the_output_of_a_real_node_is_read(path: Path) -> None:
    text = path.read_text()
    facts, live = known(parse_facts(text), None), known(parse_live(text), None)
    assert facts is not None
    assert live is not None
    assert facts.gpus
    assert known(facts.driver_version, None)
    gpus = [gpu for gpu in facts.gpus if isinstance(gpu, NvmlGpu)]
    assert len(gpus) == len(live)
    for gpu, reading in zip(gpus, live, strict=True):
        assert gpu.bdf == reading.bdf
        assert known(gpu.name, None)
        assert known(gpu.uuid, None)
        assert (known(gpu.memory_total_bytes, None) or 0) > 1 << 30
        assert known(reading.link_width, None)


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "hgx-h100+xid-79-fell-off-bus", "gb200"])
def test_the_stand_in_prints_what_nvml_reports(name: str) -> None:
    host = SimulatedHost(name)
    text, own, own_live = smi_text(host), known(host.nvml(), None), known(host.nvml_live(), None)
    facts, live = known(parse_facts(text), None), known(parse_live(text), None)
    assert facts is not None
    assert own is not None
    assert own_live is not None
    assert live is not None
    assert facts.driver_version == own.driver_version
    for gpu, real in zip(facts.gpus, own.gpus, strict=True):
        if isinstance(real, Unknown):
            assert isinstance(gpu, Unknown)
            continue
        assert isinstance(gpu, NvmlGpu)
        for field in ("bdf", "name", "uuid", "serial", "memory_total_bytes", "persistence", "mig"):
            value = getattr(real, field)
            assert isinstance(value, Unknown) or getattr(gpu, field) == value, field
    assert [gpu.bdf for gpu in live] == [gpu.bdf for gpu in own_live]
    assert [gpu.processes for gpu in live] == [gpu.processes for gpu in own_live]


def test_capabilities_and_nvlinks_come_from_further_commands() -> None:
    facts = parse_facts(smi_text(SimulatedHost("hgx-h100")))
    assert not isinstance(facts, Unknown)
    first = next(gpu for gpu in facts.gpus if not isinstance(gpu, Unknown))
    capabilities = f"0000{first.bdf.upper()}, 9.0\n00000000:FF:00.0, [N/A]\n"
    links = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    read, other = with_nvlinks(with_capabilities(facts, capabilities), links).gpus[:2]
    assert not isinstance(read, Unknown)
    assert not isinstance(other, Unknown)
    assert (read.compute_capability, read.nvlinks) == ((9, 0), 1)
    assert isinstance(other.compute_capability, Unknown)
    assert isinstance(other.nvlinks, Unknown)
