"""The package that a file belongs to, by dpkg and by rpm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.packages import (
    Package,
    packages_of,
    parse_dpkg_owners,
    parse_dpkg_versions,
    parse_rpm,
)
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput

COPIES, SANITY, OWN = "/usr/bin/gdrcopy_copybw", "/usr/bin/gdrcopy_sanity", "/usr/local/bin/nvbandwidth"
GDRCOPY = Package("gdrcopy-tests", "2.5-1")


class Asked(LocalHost):
    """A node with only a package database."""

    def __init__(self, root: Path, **answers: str | Unknown) -> None:
        super().__init__(str(root))
        self._answers = answers
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.asked.append(tuple(argv))
        key = argv[0].replace("-", "_") + ("_show" if "--show" in argv else "")
        output = self._answers.get(key, Unknown(Reason.NOT_THERE, argv[0], "not installed"))
        return output if isinstance(output, Unknown) else CommandOutput(tuple(argv), 1, output, "")


def test_dpkg_reports_the_package_and_its_version(tmp_path: Path) -> None:
    host = Asked(
        tmp_path,
        dpkg_query=f"gdrcopy-tests: {COPIES}\ngdrcopy-tests:amd64, other: {SANITY}\n",
        dpkg_query_show="gdrcopy-tests 2.5-1\n",
    )
    found = packages_of(host, (COPIES, OWN, SANITY))
    assert (found[COPIES], found[SANITY]) == (GDRCOPY, GDRCOPY)
    own = found[OWN]
    assert isinstance(own, Unknown)
    assert (own.reason, own.detail) == (Reason.NOT_THERE, "not owned by any package")
    assert host.asked[1][-1:] == ("gdrcopy-tests",)


def test_rpm_is_asked_if_dpkg_is_missing_or_does_not_know_the_file(tmp_path: Path) -> None:
    output = f"gdrcopy-tests 2.5-1\nfile {OWN} is not owned by any package\n"
    for dpkg in ({}, {"dpkg_query": ""}):
        found = packages_of(Asked(tmp_path, rpm=output, **dpkg), (COPIES, OWN))
        assert found[COPIES] == GDRCOPY
        assert "not owned by any package" in str(found[OWN])


def test_rpm_is_asked_for_the_rest_alone(tmp_path: Path) -> None:
    host = Asked(
        tmp_path, dpkg_query=f"a-package: {COPIES}\n", dpkg_query_show="a-package 1\n", rpm="other 2-3\n"
    )
    found = packages_of(host, (COPIES, OWN))
    assert found == {COPIES: Package("a-package", "1"), OWN: Package("other", "2-3")}
    assert host.asked[-1][-1] == OWN


def test_a_node_without_a_database_and_one_that_does_not_answer_differ(tmp_path: Path) -> None:
    nothing = packages_of(Asked(tmp_path), (COPIES,))[COPIES]
    assert isinstance(nothing, Unknown)
    assert nothing.reason is Reason.NOT_THERE
    late = Unknown(Reason.TIMED_OUT, "dpkg-query")
    assert packages_of(Asked(tmp_path, dpkg_query=late, rpm="other 2-3\n"), (COPIES,)) == {COPIES: late}
    assert packages_of(Asked(tmp_path, rpm=late), (COPIES,)) == {COPIES: late}
    half = Asked(tmp_path, dpkg_query=f"a-package: {COPIES}\n", dpkg_query_show=late)
    assert packages_of(half, (COPIES,)) == {COPIES: late}


def test_an_answer_that_does_not_fit_the_question_tells_nothing() -> None:
    answer = CommandOutput(("rpm",), 1, "one 1-1\ntwo 2-2\n", "")
    (package,) = parse_rpm(answer, (COPIES,)).values()
    assert isinstance(package, Unknown)
    assert package.reason is Reason.MALFORMED
    assert parse_dpkg_owners("diversion by dash from: /bin/sh\nno path found matching pattern /x\n") == {}


@given(st.text(), st.text())
def test_whatever_they_print_is_bounded_and_clean(text: str, more: str) -> None:
    for owner in parse_dpkg_owners(f"{text}: /usr/bin/a\n{more}").values():
        assert owner.isascii()
    versions = parse_dpkg_versions(f"{text}\na-package {more}\n")
    rpm = parse_rpm(CommandOutput(("rpm",), 0, f"name {text}\n", more), (COPIES,))
    found = [
        *versions.values(),
        *(package.version for package in rpm.values() if isinstance(package, Package)),
    ]
    assert all(len(version) <= 80 and version.isprintable() for version in found)
