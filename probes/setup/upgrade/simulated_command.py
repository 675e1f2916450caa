"""The read-only form of a command that upgrades packages: what the package manager itself says it would do.

Nothing is downloaded, installed, locked or cached: apt-get(8) --simulate, with its caches disabled
(apt.conf(5), Dir::Cache::pkgcache); dnf(8) --assumeno --cacheonly; zypper(8) --no-refresh and --dry-run.
The answer follows from the package lists that the node already has.
"""

from __future__ import annotations

import re
import shlex

_SIMULATE = (
    *("apt-get", "--simulate", "-o", "Debug::NoLocking=true"),
    *("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="),
)
_APT = {
    "upgrade": ("upgrade",),
    "dist-upgrade": ("dist-upgrade",),
    "full-upgrade": ("dist-upgrade",),
    "install": ("install",),
    "remove": ("remove",),
    "autoremove": ("autoremove",),
}
_DNF = ("upgrade", "update", "upgrade-minimal", "distro-sync", "install", "remove", "autoremove", "downgrade")
_ZYPPER = ("update", "up", "dist-upgrade", "dup", "patch", "install", "in", "remove", "rm")
_PACKAGE = re.compile(r"[A-Za-z0-9@][A-Za-z0-9.+:_~=*^@/-]{0,200}")
_ANSWERS = ("-y", "--yes", "--assume-yes", "--assumeyes", "-q", "--quiet", "-n", "--non-interactive", "-qq")
"""Options that only answer questions or print less: left out."""
_OPTIONS = re.compile(
    r"--(?:with-new-pkgs|no-install-recommends|allow-downgrades|only-upgrade|target-release=[\w./:-]{1,64}"
    r"|enablerepo=[\w*,.-]{1,128}|disablerepo=[\w*,.-]{1,128}|exclude=[\w*,.+-]{1,256}|releasever=[\w.-]{1,32}"
    r"|nobest|best|allowerasing|security|skip-broken|no-recommends|allow-vendor-change|no-allow-vendor-change"
    r"|from=[\w.:-]{1,64}|force-resolution)"
)
_MOST_WORDS = 64


class NoUpgradeCommand(ValueError):
    """The text is not a command whose effect can be asked for; the message says why."""


def simulated(command: str) -> tuple[str, ...]:
    """Return the argv that prints what `command` would change.

    Raises:
        NoUpgradeCommand: it is no upgrade by apt-get, dnf or zypper, or has an option that is not known here.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise NoUpgradeCommand(f"the command cannot be read: {error}") from error
    words = words[1:] if words[:1] == ["sudo"] else words
    if len(words) > _MOST_WORDS:
        raise NoUpgradeCommand(f"more than {_MOST_WORDS} words")
    tool = words[0] if words else ""
    rest = [word for word in words[1:] if word not in _ANSWERS]
    options = [word for word in rest if word.startswith("-")]
    for option in options:
        if _OPTIONS.fullmatch(option) is None:
            raise NoUpgradeCommand(f"the option {option} is not known here; leave it out")
    action, *packages = [word for word in rest if not word.startswith("-")] or [""]
    for package in packages:
        if _PACKAGE.fullmatch(package) is None or "//" in package:
            raise NoUpgradeCommand(f"{package!r} is no package name; give one command, without && or ;")
    if tool in ("apt-get", "apt") and action in _APT:
        more = ["--with-new-pkgs"] if tool == "apt" and action == "upgrade" else []
        return (*_SIMULATE, *more, *options, *_APT[action], *packages)
    if tool in ("dnf", "yum") and action in _DNF:
        return (tool, "--cacheonly", "--assumeno", *options, action, *packages)
    if tool == "zypper" and action in _ZYPPER:
        known = ("--xmlout", "--non-interactive", "--no-refresh")
        return (tool, *known, action, "--dry-run", *options, *packages)
    raise NoUpgradeCommand(
        "only upgrade, install and remove of apt-get, apt, dnf, yum and zypper can be simulated"
    )
