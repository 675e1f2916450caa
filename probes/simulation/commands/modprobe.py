"""modprobe(8) and rmmod(8): the words are kmod's."""

from __future__ import annotations

from collections.abc import Mapping

from probes.facts.kernel.modprobe_config import InstallLine, LoadingRules, read_rules
from probes.facts.kernel.release import read_cmdline
from probes.simulation.commands.command_result import Obeyed, Order, Performed, not_obeyed, split_options
from probes.simulation.commands.modprobe_options import options_of
from probes.simulation.node.depmod import read_index
from probes.simulation.node.module_loading import INVALID, may_not_unload, take_in, take_out
from probes.simulation.node.modules import refcnt, users_of

# fmt: off
_KNOWN = frozenset({
    "-a", "-r", "-q", "-v", "-n", "-b", "-i", "-f", "-w", "-s", "--all", "--remove", "--quiet", "--verbose",
    "--dry-run", "--show", "--use-blacklist", "--ignore-install", "--ignore-remove", "--first-time", "--wait",
    "--syslog", "--force",
})
# fmt: on
_NOTHING_THERE = frozenset({"/bin/false", "/usr/bin/false", "false", "/sbin/nologin"})
_NOTHING_DONE = frozenset({"/bin/true", "/usr/bin/true", "true", ":"})
# Roughly, on a node with eight GPUs: the driver starts each of them, mlx5_core each NIC's firmware.
_SECONDS = {"nvidia": 2.5, "mlx5_core": 4.0, "nvidia_uvm": 0.4}
_AUTOLOADED = {"mlx4_core": ("mlx4_ib",), "mlx5_core": ("mlx5_ib",)}  # by the device it makes


class _Modprobe:
    """One run of modprobe."""

    def __init__(self, order: Order, options: Mapping[str, str]) -> None:
        self._tree, self._now = order.tree, order.seconds
        self._options = options
        self._rules: LoadingRules = read_rules(order.host, read_cmdline(order.host))
        self._given = options_of(order.host)
        self._index = read_index(order.tree)
        self._level = "WARNING" if options.keys() & {"-a", "--all"} else "FATAL"
        self._quiet = bool(options.keys() & {"-q", "--quiet"})
        self.lines: list[str] = []
        self.seconds = 0.1

    def insert(self, wanted: str, parameters: Mapping[str, str]) -> bool:
        """What `modprobe NAME` does: a blacklist does not stop it, an install line does."""
        name = wanted.replace("-", "_")
        if self._is_built_in(name) or (name in self._tree.live_modules and name not in self._index):
            return True
        if name not in self._index:
            if not self._quiet:
                directory = f"/lib/modules/{self._tree.description.kernel}"
                self._say(self._level, f"Module {wanted} not found in directory {directory}")
            return False
        if self._options.keys() & {"-b", "--use-blacklist"} and self._rules.blacklisted(name):
            return True
        if name in self._tree.live_modules and "--first-time" in self._options:
            self._say("ERROR", f"could not insert '{name}': Module already in kernel")
            return False
        return self._insert(name, parameters)

    def remove(self, wanted: str) -> bool:
        """What `modprobe -r NAME` does: also removes what nothing needs any more."""
        name = wanted.replace("-", "_")
        tree = self._tree
        if self._is_built_in(name):
            self._say("FATAL", f"Module {name} is builtin.")
            return False
        if name not in tree.live_modules:
            if name not in self._index:
                self._say("FATAL", f"Module {wanted} not found.")
                return False
            if "--first-time" in self._options:
                self._say("FATAL", f"Module {name} is not in kernel.")
            return "--first-time" not in self._options
        if refcnt(tree, name, self._now) > 0:
            self._say("FATAL", f"Module {name} is in use.")
            return False
        if self._only_shown(f"rmmod {name}"):
            return True
        if may_not_unload(tree):
            self._say("ERROR", f"could not remove '{name}': Operation not permitted")
            return False
        take_out(tree, name)
        self.seconds += _SECONDS.get(name, 0.1)
        needs = sorted(self._index.get(name, ()), key=lambda one: -len(self._index.get(one, ())))
        for need in needs:
            if need in tree.live_modules and refcnt(tree, need, self._now) == 0:
                self._only_shown(f"rmmod {need}")
                take_out(tree, need)
        return True

    def _insert(self, name: str, parameters: Mapping[str, str], coming: tuple[str, ...] = ()) -> bool:
        if name in self._tree.live_modules or name in coming:
            return True
        for need in reversed(self._index.get(name, ())):
            if not self._insert(need, {}, (*coming, name)):
                return False
        line = self._rules.install_line(name)
        if line is not None and not self._options.keys() & {"-i", "--ignore-install"}:
            told = self._run_instead(name, line)
            if told is not None:
                return told
        given = {**self._given.get(name, {}), **parameters}
        said = " ".join(f"{key}={value}" for key, value in given.items())
        if self._only_shown(f"insmod {self._path(name)} {said}"):
            return True
        refusal = take_in(self._tree, name, given, self._now)
        self.seconds += _SECONDS.get(name, 0.1)
        if refusal is not None:
            self._say("ERROR", f"could not insert '{name}': {refusal.error}")
            return False
        self._autoload(name)
        return True

    def _autoload(self, name: str) -> None:
        """What udev loads by alias, which a blacklist does stop; its errors are seen by nobody."""
        said = list(self.lines)
        for other in _AUTOLOADED.get(name, ()):
            if other in self._index and not self._rules.blacklisted(other):
                self._insert(other, {})
        self.lines = said

    def _run_instead(self, name: str, line: InstallLine) -> bool | None:
        """The command of an install line; None: the module is loaded after all."""
        command = line.command.split()
        if "--ignore-install" in command or "-i" in command:
            return None
        if command and command[0] in _NOTHING_DONE:
            return True
        if not command or command[0] not in _NOTHING_THERE:
            self.lines.extend(not_obeyed(line.command).lines)
        told = f"Error running install command '{line.command}' for module {name}: retcode 1"
        self._say("ERROR", f"../libkmod/libkmod-module.c:1084 command_do() {told}")
        self._say("ERROR", f"could not insert '{name}': {INVALID.error}")
        return False

    def _is_built_in(self, name: str) -> bool:
        listed = self._tree.text(f"/lib/modules/{self._tree.description.kernel}/modules.builtin")
        return any(line.rpartition("/")[2].replace("-", "_") == f"{name}.ko" for line in listed.splitlines())

    def _path(self, name: str) -> str:
        kernel = f"/lib/modules/{self._tree.description.kernel}"
        lines = self._tree.text(f"{kernel}/modules.dep").splitlines()
        files = (line.partition(":")[0] for line in lines)
        file = next((one for one in files if one.replace("-", "_").endswith(f"/{name}.ko")), f"{name}.ko")
        return f"{kernel}/{file}"

    def _only_shown(self, line: str) -> bool:
        dry = bool(self._options.keys() & {"-n", "--dry-run", "--show"})
        if self._options.keys() & {"-v", "--verbose"}:
            self.lines.append(line)
        return dry

    def _say(self, level: str, text: str) -> None:
        self.lines.append(f"modprobe: {level}: {text}")


def modprobe(order: Order) -> Performed:
    """Loads and unloads modules, with what they need."""
    options, words = split_options(order.words, valued="w")
    unknown = sorted(options.keys() - _KNOWN)
    if unknown:
        sort = "unrecognized option" if unknown[0].startswith("--") else "invalid option --"
        lines = f"modprobe: {sort} '{unknown[0] if unknown[0].startswith('--') else unknown[0][1:]}'"
        return Performed((lines,), 1, 0.1)
    if not words:
        return Performed(("modprobe: ERROR: missing parameters. See -h.",), 1, 0.1)
    run = _Modprobe(order, options)
    if options.keys() & {"-r", "--remove"}:
        well = [run.remove(word) for word in words]
    elif options.keys() & {"-a", "--all"}:
        well = [run.insert(word, {}) for word in words]
    else:
        parameters = (word.partition("=")[::2] for word in words[1:])
        well = [run.insert(words[0], {key.replace("-", "_"): value for key, value in parameters})]
    return Performed(tuple(run.lines), 0 if all(well) else 1, round(run.seconds, 1))


def rmmod(order: Order) -> Performed:
    """Unloads modules that nothing uses."""
    options, words = split_options(order.words)
    if not words:
        return Performed(("rmmod: ERROR: missing module name.",), 1, 0.1)
    lines: list[str] = []
    for word in words:
        name = word.replace("-", "_")
        users = users_of(order.tree, name)
        if name not in order.tree.live_modules:
            lines.append(f"rmmod: ERROR: Module {name} is not currently loaded")
        elif users and "-f" not in options:
            lines.append(f"rmmod: ERROR: Module {name} is in use by: {' '.join(users)}")
        elif refcnt(order.tree, name, order.seconds) > 0:
            # Hardly any kernel can be forced (CONFIG_MODULE_FORCE_UNLOAD).
            forced = f"rmmod: ERROR: could not remove module {word}: Resource temporarily unavailable"
            lines.append(forced if "-f" in options else f"rmmod: ERROR: Module {name} is in use")
        elif may_not_unload(order.tree):
            lines.append(f"rmmod: ERROR: could not remove module {word}: Operation not permitted")
        else:
            take_out(order.tree, name)
    return Performed(tuple(lines), 1 if lines else 0, 0.1 * len(words))


COMMANDS: Mapping[str, Obeyed] = {"modprobe": modprobe, "rmmod": rmmod}
