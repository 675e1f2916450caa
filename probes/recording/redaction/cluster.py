"""Rule for the answers of kubectl and oc: objects as JSON, or the log of a container."""

from __future__ import annotations

import json
from typing import Any

from probes.base.unknown import Unknown
from probes.facts.system.kubernetes import known_phrases
from probes.facts.system.kubernetes_objects import kept_fields, objects
from probes.recording.redaction.tokens import Tokens


def cluster_objects(tokens: Tokens, text: str) -> str:
    """Keep the fields that are read, with unknown words replaced; of a log, keep the known phrases."""
    if isinstance(objects(text), Unknown):
        return "".join(f"{phrase}\n" for phrase in known_phrases(text))
    return json.dumps(_replaced(tokens, json.loads(kept_fields(text))), separators=(",", ":"))


def _replaced(tokens: Tokens, value: Any) -> Any:
    if isinstance(value, dict):
        # Keys with a slash are labels and resources, whose names a site can choose.
        return {
            tokens.text(key) if "/" in key or "." in key else key: _replaced(tokens, one)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_replaced(tokens, one) for one in value]
    return tokens.text(value) if isinstance(value, str) else value
