"""The settings of Sphinx for the documentation site."""

from typing import Any

project = html_title = "gdrtop"
project_copyright = ""
language = "en"
extensions = ["myst_parser", "sphinxcontrib.asciinema"]
nitpicky = True
smartquotes = False  # "--json" would get a dash
highlight_language = "none"
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
# 2000 pages would each have a list of the manual.
_SHORT = [f"sidebar/{part}.html" for part in ("brand", "search", "scroll-start", "scroll-end")]
html_sidebars = {"findings/*/index": _SHORT, "messages/*/index": _SHORT, "messages/*/*/index": _SHORT}
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_use_index = html_domain_indices = False
html_permalinks = False


def player_where_it_is(app: Any, name: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Load the player of the recording on the first page only."""
    if name != "index":
        for kind in ("script_files", "css_files"):
            context[kind] = [file for file in context[kind] if "asciinema" not in str(file)]


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("html-page-context", player_where_it_is)
