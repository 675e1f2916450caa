"""What a GPU and a NIC of a machine type should reach: rows of a table, and the parser of such tables.

The table of gdrtop is probes/bandwidth/expected.toml; a site can have one of its own, in the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from probes.bandwidth.model.limits import payload_share
from probes.base.data_files import parse_toml, read_toml
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.facts.pci.functions import link_gbps

MAX_TABLE_BYTES = 256 << 10
_MOST_ROWS = 500
_MOST_CHARACTERS = 200
_MOST_STARS = 8  # of a pattern
_USUAL_PAYLOAD_BYTES = 256  # MaxPayload of most servers
_MOST_GBPS = 100_000.0
TESTS = ("write", "read", "send")
"""perftest's bandwidth tests, without "ib_" and "_bw"."""
NEAR_PORT = 0.90
"""The share of its limit that a healthy port reaches: azurehpc-health-checks accepts 180 of 200 Gb/s (ND A100
v4) and 380 of 400 Gb/s (ND H100 v5) from ib_write_bw for a healthy GPU–NIC pair."""
NEAR_PCIE = 0.82
"""The same for a PCIe link: 90 % of what acknowledgements and flow control leave, which take 8 to 10 % of the
link (Neugebauer et al., SIGCOMM 2018) and are not in the limit."""


class TableError(Exception):
    """A table of expected figures is not valid; the message says where and why."""


@frozen
class ExpectedPair:
    """One row: which machines, GPUs and NICs it is for, and what they reach.

    Patterns are as in a shell ("*H100*"), in any case; "" fits everything.
    """

    name: str
    product: str = ""  # DMI vendor and product: "Supermicro SYS-821GE-TNHR"
    gpu: str = ""  # "NVIDIA H100 80GB HBM3"
    nic: str = ""  # "Mellanox ConnectX-7"
    port_gbps: float = 0.0  # 0: not known
    pcie_gtps: float = 0.0  # the slowest PCIe link between GPU and NIC: 32.0
    pcie_lanes: int = 0
    at_least_gbps: float | None = None  # None: from port and link; 0: nothing is expected
    tests: tuple[str, ...] = ("write",)
    source: str = ""

    def fits(self, product: str, gpu: str, nic: str) -> bool:
        """Return whether the row is for this product, GPU model and NIC model."""
        both = ((self.product, product), (self.gpu, gpu), (self.nic, nic))
        return all(not pattern or fnmatchcase(text.lower(), pattern.lower()) for pattern, text in both)

    @property
    def expected_gbps(self) -> float:
        """What a healthy pair reaches at least, one way with large messages; 0: nothing is expected."""
        if self.at_least_gbps is not None:
            return self.at_least_gbps
        shares = [NEAR_PORT * self.port_gbps] if self.port_gbps else []
        if self.pcie_gtps and self.pcie_lanes:
            link = link_gbps(self.pcie_gtps, self.pcie_lanes) * payload_share(_USUAL_PAYLOAD_BYTES)
            shares.append(NEAR_PCIE * link)
        return min(shares, default=0.0)


@frozen
class ExpectedTable:
    """The rows of a table, the first that fits counts."""

    rows: tuple[ExpectedPair, ...] = ()
    uses_builtin: bool = True  # False: gdrtop's own rows do not follow


def parse_table(text: str) -> ExpectedTable:
    """Parse a table of expected figures; raise TableError if it is not one."""
    if len(text) > MAX_TABLE_BYTES:
        raise TableError(f"it is larger than {MAX_TABLE_BYTES >> 10} KiB")
    try:
        content = parse_toml(text)
    except RecursionError:
        raise TableError("it is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError; ValueError for dates and numbers out of range
        raise TableError(f"it is not valid TOML: {printable(str(error), _MOST_CHARACTERS)}") from None
    if unknown := sorted(set(content) - {"pair", "builtin"}):
        raise TableError(f"unknown field {printable(unknown[0], 40)}; known: builtin and [[pair]]")
    rows, builtin = content.get("pair", []), content.get("builtin", True)
    if not isinstance(rows, list) or len(rows) > _MOST_ROWS:
        raise TableError(f"pair must be a list of at most {_MOST_ROWS} tables: [[pair]]")
    if not isinstance(builtin, bool):
        raise TableError("builtin must be true or false")
    return ExpectedTable(tuple(_row(row, number) for number, row in enumerate(rows, 1)), builtin)


def _row(value: object, number: int) -> ExpectedPair:
    where = f"pair {number}"
    if not isinstance(value, dict):
        raise TableError(f"{where} is not a table: write [[pair]]")
    if unknown := sorted(set(value) - set(_READERS)):
        raise TableError(f"{where} has the unknown field {printable(unknown[0], 40)}")
    if not value.get("name"):
        raise TableError(f"{where} has no name")
    read: dict[str, Any] = {}
    for name, given in value.items():
        try:
            read[name] = _READERS[name](given)
        except ValueError as error:
            raise TableError(f"{where}: {name} {error}") from None
    row = ExpectedPair(**read)
    if row.at_least_gbps is None and not row.expected_gbps:
        raise TableError(f"{where} has no expected rate: set at_least_gbps or port_gbps")
    return row


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise ValueError(f"must be a string of at most {_MOST_CHARACTERS} characters")
    return printable(value, _MOST_CHARACTERS)


def _pattern(value: object) -> str:
    text = _text(value)
    if text.count("*") > _MOST_STARS:
        raise ValueError(f"has more than {_MOST_STARS} stars")
    return text


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST_GBPS:
        raise ValueError(f"must be a number from 0 to {_MOST_GBPS:.0f}")
    return float(value)


def _lanes(value: object) -> int:
    if isinstance(value, bool) or value not in (1, 2, 4, 8, 16, 32):
        raise ValueError("must be 1, 2, 4, 8, 16 or 32")
    return int(str(value))


def _tests(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or any(test not in TESTS for test in value):
        raise ValueError(f"must be a list of {', '.join(TESTS)}")
    return tuple(dict.fromkeys(value))


_READERS: Mapping[str, Callable[[object], Any]] = {
    "name": _text,
    "product": _pattern,
    "gpu": _pattern,
    "nic": _pattern,
    "port_gbps": _number,
    "pcie_gtps": _number,
    "pcie_lanes": _lanes,
    "at_least_gbps": _number,
    "tests": _tests,
    "source": _text,
}
assert set(_READERS) == {field.name for field in fields(ExpectedPair)}


# DGX Spark: jobs copy through host memory, so what a pair of nodes reaches is judged by that path.


@frozen
class SparkRate:
    """A row of dgx_spark.toml, which has the meaning of the fields."""

    measure: str
    least: float
    source: str
    most: float = math.inf
    means: str = ""
    check: str = ""


SPARK = "DGX Spark"
"""The name of its expectations, in saved results too."""


@cache
def spark_rates() -> tuple[SparkRate, ...]:
    """Return the rows of dgx_spark.toml."""
    return tuple(SparkRate(**row) for row in read_toml("probes.bandwidth", "dgx_spark.toml")["rate"])


def spark_least(measure: str) -> SparkRate:
    """Return the row of what a healthy pair reaches at least."""
    return next(row for row in spark_rates() if row.measure == measure and not row.means)


def spark_rate(measure: str, gbps: float) -> SparkRate | None:
    """Return the row of a rate; None: it is a sign of nothing known."""
    rows = (row for row in spark_rates() if row.measure == measure)
    return next((row for row in rows if row.least <= gbps <= row.most), None)


def spark_sign(measure: str, gbps: float) -> str:
    """Return what a rate is a sign of; "" if it is as it should be, or a sign of nothing known."""
    row = spark_rate(measure, gbps)
    return "" if row is None else row.means


@frozen
class Expectation:
    """What one test should reach, and by which row."""

    gbps: float
    name: str  # "Azure ND H100 v5"
    source: str
    spark: str = ""  # the rows of dgx_spark.toml that say what a lower rate is a sign of: "rail"

    @property
    def words(self) -> str:
        """Return "at least 380 Gb/s is expected for Azure ND H100 v5"."""
        return f"at least {self.gbps:.0f} Gb/s is expected for {self.name}"
