"""YAML by PyYAML, with comments before keys: the library cannot write them, but says where each key is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from probes.base.text import printable

COMMENT_WIDTH = 100
_LONGEST = 600  # characters of one comment: names in it come from the node
# A reader of YAML 1.2 takes some plain words for a number or a Boolean that PyYAML, with YAML 1.1, does not.
_AMBIGUOUS = re.compile(r"[-+.\d].*|y|n|true|false", re.IGNORECASE | re.DOTALL)

Key = tuple["str | int", ...]


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes what looks like a number and writes text of many lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values twice, never as an anchor."""
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else '"' if _AMBIGUOUS.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _represent_text)


def comment_lines(text: str, hanging: str = "") -> list[str]:
    """Return a text as comment lines for YAML, sh, Dockerfile and systemd; nothing in it can end a comment.

    A backslash at the end of a line would continue it in some of these formats. `hanging`: indents all lines
    but the first.
    """
    lines = textwrap.wrap(
        printable(text, _LONGEST), COMMENT_WIDTH, subsequent_indent=hanging, break_on_hyphens=False
    )
    return [f"# {line.rstrip(' ' + chr(92))}".rstrip() for line in lines]


def command_line(text: str) -> str:
    """Return a comment line that is not wrapped, so that a command in it can be copied."""
    return f"#   {printable(text, _LONGEST).rstrip(' ' + chr(92))}"


def dump(value: Mapping[str, Any], comments: Mapping[Key, str]) -> str:
    """Return one document with each comment on its own lines before the key, as ("spec", "env", 0)."""
    text = yaml.dump(
        dict(value),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=False,
        width=4096,
        default_flow_style=False,
    )
    lines = text.splitlines()
    places = dict(_places(yaml.compose(text, Loader=yaml.SafeLoader), ()))
    above: dict[int, list[str]] = {}
    for key, comment in comments.items():
        above.setdefault(places[key], []).extend(comment_lines(comment))
    written: list[str] = []
    for number, line in enumerate(lines):
        indent = line[: len(line) - len(line.lstrip(" "))]
        written += [f"{indent}{comment}" for comment in above.get(number, ())]
        written.append(line)
    return "\n".join(written) + "\n"


def _places(node: yaml.Node | None, path: Key) -> Iterable[tuple[Key, int]]:
    """Yield the number of the line at which each key and each item begins."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line
            yield from _places(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line
            yield from _places(item, (*path, index))


def join(head: Iterable[str], *documents: str) -> str:
    """Return the head's comment lines and the documents as one stream."""
    return "\n".join(head) + "\n" + "---\n".join(documents)
