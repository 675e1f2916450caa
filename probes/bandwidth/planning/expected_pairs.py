"""Which row of the tables of expected figures is for a test on this node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources

from probes.bandwidth.model.expected import TESTS, Expectation, ExpectedPair, ExpectedTable, parse_table
from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.rating import LARGE_FROM_BYTES
from probes.bandwidth.model.samples import GPU_PATHS
from probes.base.unknown import Unknown, known
from probes.facts.pci.names import built_in_name
from probes.facts.system.platform import PlatformFacts
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import NEAR

_TOOLS = {f"ib_{test}_bw": test for test in TESTS}


@cache
def builtin_table() -> ExpectedTable:
    """Return gdrtop's own table."""
    text = (resources.files("probes.bandwidth") / "expected.toml").read_text(encoding="utf-8")
    return parse_table(text)


def rows_of(site: ExpectedTable | None) -> tuple[ExpectedPair, ...]:
    """Return the rows in their order: the site's first."""
    if site is None:
        return builtin_table().rows
    return (*site.rows, *(builtin_table().rows if site.uses_builtin else ()))


def with_expected(
    examination: Examination, series: Series, rows: Sequence[ExpectedPair], note: str = ""
) -> Series:
    """Return the series with what each test should reach, and a note on each test."""
    more = (note,) if note else ()
    tests = (
        replace(test, expected=_expected(examination, test, rows), notes=(*test.notes, *more))
        for test in series.tests
    )
    return replace(series, tests=tuple(tests))


def _expected(
    examination: Examination, test: PlannedTest, rows: Sequence[ExpectedPair]
) -> Expectation | None:
    """Return what the first row that fits expects; None for tests that no table is about."""
    name, load = _TOOLS.get(test.tool), test.settings.load
    if name is None or test.memory not in GPU_PATHS or load.is_bidirectional:
        return None
    if load.size_bytes is not None and load.size_bytes < LARGE_FROM_BYTES:
        return None
    if not _is_near(examination, test.pair.gpu, test.pair.nic):
        return None
    models = _models(examination, test.pair.gpu, test.pair.nic)
    for row in rows:
        if name in row.tests and row.fits(*models):
            gbps = row.expected_gbps
            return Expectation(gbps, row.name, row.source) if gbps else None
    return None


def _is_near(examination: Examination, gpu: str, nic: str) -> bool:
    """Return whether the NIC is one of the GPU's nearest, below its switch or at its own CPU by C2C."""
    topology = examination.topology
    path = topology.paths.get((gpu, nic))
    nearest = topology.best_nics.get(gpu, ())
    if path is None or isinstance(path.nccl, Unknown) or not nearest:
        return False
    gpus = examination.node.gpus
    cards = () if isinstance(gpus, Unknown) else gpus.gpus
    by_c2c = any(card.bdf == gpu and known(card.c2c_links, 0) for card in cards)
    return path.nccl == topology.paths[gpu, nearest[0]].nccl and (path.nccl in NEAR or by_c2c)


def _models(examination: Examination, gpu: str, nic: str) -> tuple[str, str, str]:
    """Return product, GPU model and NIC model; "" where unknown."""
    platform, gpus = examination.node.platform, examination.node.gpus
    product = known(platform.product, "") if isinstance(platform, PlatformFacts) else ""
    cards = () if isinstance(gpus, Unknown) else gpus.gpus
    model = next((card.name for card in cards if card.bdf == gpu), "")
    bdf = next((known(end.bdf, "") for end in examination.topology.nics if end.id == nic), "")
    function = functions_of(examination).get(bdf)
    if function is None:
        return product, model, ""
    return product, model, built_in_name(known(function.vendor_id, 0), known(function.device_id, 0))
