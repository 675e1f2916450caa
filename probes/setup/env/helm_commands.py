"""The values that `helm install` and `helm upgrade` set on their command line.

Source: helm.sh/docs/intro/using_helm, The Format and Limitations of --set.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from probes.setup.env.shell_commands import Word
from probes.setup.env.yaml_tree import Mapping, Scalar

_COMMANDS = frozenset(("install", "upgrade", "template"))
_SET = ("--set", "--set-string")
_DOT = re.compile(r"(?<!\\)\.")
_COMMA = re.compile(r"(?<!\\),")
_DEEPEST = 16
_MOST = 256


def values_of(words: Sequence[Word]) -> Mapping | None:
    """Return the values as those of a file; None: the command sets none."""
    names = [posixpath.basename(word.text) for word in words]
    if "helm" not in names or not _COMMANDS & set(names):
        return None
    root = Mapping(words[names.index("helm")].line)
    for place, word in enumerate(words):
        option, equals, text = word.text.partition("=")
        if option not in _SET:
            continue
        if not equals:
            text = words[place + 1].text if place + 1 < len(words) else ""
        for pair in _COMMA.split(text)[:_MOST]:
            path, equals, value = pair.partition("=")
            if equals:
                _put(root, _DOT.split(path)[:_DEEPEST], Scalar(word.line, value, option == _SET[1]))
    return root if root.items else None


def _put(mapping: Mapping, path: Sequence[str], value: Scalar) -> None:
    for key in path[:-1]:
        inner = mapping.items.setdefault(key, Mapping(value.line))
        if not isinstance(inner, Mapping):
            return
        mapping = inner
    mapping.items[path[-1]] = value
