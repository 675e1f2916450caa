"""A JSON document as YAML: the same keys and values, read alike by YAML 1.1 and 1.2."""

from __future__ import annotations

import sys
from typing import Any

import yaml

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml is six times as fast


class _DocumentDumper(_Dumper):  # type: ignore[misc]
    """Writes no anchors: a value that is used twice is written twice, as in JSON."""

    def ignore_aliases(self, data: object) -> bool:
        """Return that no value has an anchor."""
        return True


def _text(dumper: Any, text: str) -> Any:
    """Quote what YAML 1.1 and 1.2 read differently, such as 1e3 and 0o17."""
    whole = text.encode("utf-8", "replace").decode("utf-8")  # libyaml takes no lone surrogates
    style = None if whole[:1].isalpha() and whole.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", whole, style)


_DocumentDumper.add_representer(str, _text)


def yaml_text(content: object) -> str:
    """Return the document in ASCII; each value is one line."""
    return str(yaml.dump(content, Dumper=_DocumentDumper, sort_keys=False, width=sys.maxsize >> 32))
