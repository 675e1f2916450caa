"""The lines `options MODULE NAME=VALUE…` of modprobe.d."""

from __future__ import annotations

from probes.base.unknown import known
from probes.facts.kernel.modprobe_config import MODPROBE_DIRECTORIES
from probes.host.protocol import Host


def options_of(host: Host) -> dict[str, dict[str, str]]:
    """Module -> parameters; files by name, of one name that in the directory of the highest rank."""
    files: dict[str, str] = {}
    for directory in MODPROBE_DIRECTORIES:
        for name in known(host.names(directory), ()):
            if name.endswith(".conf") and not name.startswith("."):
                files.setdefault(name, f"{directory}/{name}")
    found: dict[str, dict[str, str]] = {}
    for name in sorted(files):
        for line in known(host.read(files[name]), "").replace("\\\n", " ").splitlines():
            words = line.split()
            if len(words) < 3 or words[0] != "options":
                continue
            parameters = found.setdefault(words[1].replace("-", "_"), {})
            for word in words[2:]:
                parameter, _, value = word.partition("=")
                parameters[parameter.replace("-", "_")] = value
    return found
