"""Findings name the address of their page where the configuration says where it is published."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from probes.base.site import Site, finding_page, set_site
from probes.checks.registry import CHECKS
from probes.simulation.host import SimulatedHost
from tests.site.pages import finding_pages
from tests.support.doctor import findings_on
from tui.command_line.options import OutputOptions
from tui.commands.check import CheckOptions, write_check
from tui.commands.explain import write_explanation
from tui.settings.table import SETTINGS, checked

NODE, FOUND = "hgx-h100+acs-on", "acs-redirect-enabled"
ADDRESS = "https://docs.example.com/gdrtop"
PAGE = f"{ADDRESS}/findings/{FOUND}/"


@pytest.fixture
def published() -> Iterator[None]:
    set_site(Site(pages=f"{ADDRESS}/"))
    yield
    set_site(Site())


def printed(**options: object) -> str:
    out = io.StringIO()
    write_check(SimulatedHost(NODE, clock=lambda: 1000.0), out, CheckOptions(**options))  # type: ignore[arg-type]
    return out.getvalue()


def explained(as_json: bool) -> str:
    out = io.StringIO()
    host = SimulatedHost(NODE, clock=lambda: 1000.0)
    write_explanation(host, out, 41000, "", OutputOptions(json=as_json), wait=lambda seconds: None)
    return out.getvalue()


def test_the_address_is_that_of_the_page_that_the_site_has(published: None) -> None:
    assert {f"{finding_page(check.id)}index" for check in CHECKS} <= {name for name, _ in finding_pages({})}
    assert findings_on(NODE)[FOUND].page == PAGE


def test_text_and_json_name_the_page(published: None) -> None:
    assert f"More      {PAGE}" in printed()
    (found,) = json.loads(printed(json=True))["findings"]
    assert found["url"] == PAGE
    assert f"More: {PAGE}" in explained(False)
    assert PAGE in [each.get("url") for each in json.loads(explained(True))["findings"]]


def test_without_a_place_nothing_names_a_page() -> None:
    assert "url" not in printed(json=True)
    assert "url" not in json.loads(explained(True))["findings"][0]
    assert "More: " not in explained(False)
    assert findings_on(NODE)[FOUND].page == ""


def test_a_check_of_a_site_has_no_page(published: None) -> None:
    assert replace(findings_on(NODE)[FOUND], area="site").page == ""


def test_the_copy_of_a_package_opens_in_a_browser() -> None:
    set_site(Site(pages="file:///usr/share/doc/gdrtop/html"))
    try:
        page = findings_on(NODE)[FOUND].page
    finally:
        set_site(Site())
    assert page == f"file:///usr/share/doc/gdrtop/html/findings/{FOUND}/index.html"


@pytest.mark.parametrize(
    "wrong", ["docs", "ftp://a", "javascript:alert(1)", 'https://a"b', "https://a b", "https://"]
)
def test_only_an_address_is_taken(wrong: str) -> None:
    with pytest.raises(ValueError, match="must be an address"):
        checked(SETTINGS["site_url"], wrong)


@pytest.mark.parametrize("right", ["", ADDRESS, f"{ADDRESS}/", "http://node1:8000/~x"])
def test_an_address_is_taken(right: str) -> None:
    assert checked(SETTINGS["site_url"], right) == right
