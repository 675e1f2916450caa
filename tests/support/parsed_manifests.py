"""Manifests of simulated nodes, read back as their readers do."""

import json
import subprocess
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import unquote

import yaml
from jsonschema import Draft202012Validator

from probes.base.unknown import Reason, Unknown
from probes.facts.gpudirect import GdrPath
from probes.setup.manifests.catalogue import MANIFESTS
from probes.setup.manifests.manifest_text import DriverOwner, ManifestRequest, Refused, make_request
from probes.setup.situation import Situation, read_situation
from probes.simulation.host import SimulatedHost
from tests.support import manifest_schemas
from tests.support.doctor import examination_of

ABSENT = Unknown(Reason.NOT_THERE, "test")
DMABUF, PEERMEM = GdrPath.DMABUF, GdrPath.PEERMEM
HOST, OPERATOR = DriverOwner.HOST, DriverOwner.OPERATOR


@cache
def situation_of(name: str) -> Situation:
    return read_situation(SimulatedHost(name, clock=lambda: 1000.0), examination_of(name))


def request_of(node: str | Situation, path: GdrPath | None = None, **choices: Any) -> ManifestRequest:
    situation = situation_of(node) if isinstance(node, str) else node
    request = make_request(situation, path, **choices)
    assert isinstance(request, ManifestRequest), request
    return request


def text_of(kind: str, request: ManifestRequest) -> str:
    text = MANIFESTS[kind].write(request)
    assert isinstance(text, str), text
    return text


def refusal_of(kind: str, request: ManifestRequest) -> str:
    refused = MANIFESTS[kind].write(request)
    assert isinstance(refused, Refused), refused
    return refused.reason


def valid(schema: dict[str, Any], value: Any) -> Any:
    """Return the value; fail where the schema rejects it."""
    errors = [
        f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(value)
    ]
    assert not errors
    return value


def content(text: str) -> list[str]:
    """The lines that are no comments."""
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def is_shell(script: str) -> bool:
    """Return whether sh accepts the script without running it."""
    return subprocess.run(["sh", "-n"], input=script.encode(), capture_output=True).returncode == 0


def parse(kind: str, text: str) -> Any:
    """Read a manifest back and check it against its schema; return its content."""
    if kind == "clusterpolicy":
        return valid(manifest_schemas.CLUSTER_POLICY, yaml.safe_load(text))
    if kind == "helm":
        return valid(manifest_schemas.HELM, yaml.safe_load(text))
    if kind == "nicclusterpolicy":
        policy = valid(manifest_schemas.NIC_CLUSTER_POLICY, yaml.safe_load(text))
        plugin = policy["spec"]["rdmaSharedDevicePlugin"]
        plugin["config"] = valid(manifest_schemas.SHARED_DEVICE_PLUGIN, json.loads(plugin["config"]))
        return policy
    if kind == "machineconfig":
        *pools, machine = yaml.safe_load_all(text)
        for pool in pools:
            valid(manifest_schemas.MACHINE_CONFIG_POOL, pool)
        return [*pools, valid(manifest_schemas.MACHINE_CONFIG, machine)]
    if kind == "talos":
        documents = list(yaml.safe_load_all(text))
        if len(documents) == 1:
            return valid(manifest_schemas.TALOS_MACHINE, documents[0])
        return [valid(manifest_schemas.TALOS_DOCUMENT, document) for document in documents]
    if kind == "slurm-prolog":
        assert text.startswith("#!/bin/sh\n")
        assert is_shell(text)
    return content(text)


def plugin_of(text: str) -> Any:
    """The configuration of a custom plugin of Node Problem Detector."""
    plugin = valid(manifest_schemas.PLUGIN, json.loads(text))
    limit = seconds(plugin["pluginConfig"]["timeout"])
    assert all(seconds(rule["timeout"]) <= limit for rule in plugin["rules"])
    types = {condition["type"] for condition in plugin["conditions"]}
    assert {rule["condition"] for rule in plugin["rules"]} <= types
    return plugin


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def modules_in(machine: dict[str, Any]) -> list[str]:
    """The modules that a MachineConfig's file loads."""
    (file,) = machine["spec"]["config"]["storage"]["files"]
    return unquote(file["contents"]["source"].removeprefix("data:,")).splitlines()


def changed(situation: Situation, **fields: Any) -> Situation:
    return replace(situation, **fields)
