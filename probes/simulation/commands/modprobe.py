"""modprobe(8) and rmmod(8); messages are those of kmod."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.unknown import known
from probes.facts.kernel.modprobe_config import InstallLine, LoadingRules, loaded_by, read_rules
from probes.facts.kernel.modules import LADDER
from probes.facts.kernel.release import read_cmdline
from probes.facts.pci.nic_families import RDMA_MODULE_OF
from probes.simulation.commands.command_result import (
    CommandResult,
    Invocation,
    failed,
    split_options,
    unsupported,
)
from probes.simulation.node.modules.loading import INVALID, insert_module, modules_are_locked, remove_modules
from probes.simulation.node.modules.modules import module_of_file, read_index, refcnt, users_of

# fmt: off
_OPTIONS = frozenset({
    "-a", "-r", "-q", "-v", "-n", "-b", "-i", "-f", "-w", "-s", "--all", "--remove", "--quiet", "--verbose",
    "--dry-run", "--show", "--use-blacklist", "--ignore-install", "--ignore-remove", "--first-time", "--wait",
    "--syslog", "--force",
})
# fmt: on
_FAILING_COMMANDS = frozenset({"/bin/false", "/usr/bin/false", "false", "/sbin/nologin"})
_NO_OP_COMMANDS = frozenset({"/bin/true", "/usr/bin/true", "true", ":"})
# Rough times on a node with eight GPUs: nvidia starts each GPU, mlx5_core each NIC's firmware.
_SECONDS = {"nvidia": 2.5, "mlx5_core": 4.0, "nvidia_uvm": 0.4}


class _Modprobe:
    """One run of modprobe."""

    def __init__(self, call: Invocation, options: Mapping[str, str]) -> None:
        self._tree, self._now = call.tree, call.seconds
        self._options = options
        cmdline = read_cmdline(call.host)
        self._rules: LoadingRules = read_rules(call.host, cmdline)
        self._softdeps: dict[str, list[str]] = {}
        for pulled, where in self._rules.config.softdeps.items():
            words = where.partition(": softdep ")[2].split()
            self._softdeps.setdefault("".join(words[:1]).replace("-", "_"), []).append(pulled)
        self._configured = _parameters(known(cmdline, ""), self._rules.config.options)
        self._file_names = self._rules.file_names(LADDER)
        self._names = {file: module for module, file in self._file_names.items()}
        self._index = read_index(call.tree, self._file_names)
        self._level = "WARNING" if options.keys() & {"-a", "--all"} else "FATAL"
        self._quiet = bool(options.keys() & {"-q", "--quiet"})
        self.lines: list[str] = []
        self.seconds = 0.1

    def insert(self, wanted: str, parameters: Mapping[str, str]) -> bool:
        """Run `modprobe NAME`: ignores a blacklist, obeys an install line."""
        name = self._names.get(wanted.replace("-", "_"), wanted.replace("-", "_"))
        if self._is_built_in(name) or (name in self._tree.live_modules and name not in self._index):
            return True
        if name not in self._index:
            if not self._quiet:
                directory = f"/lib/modules/{self._tree.description.kernel}"
                self._log(self._level, f"Module {wanted} not found in directory {directory}")
            return False
        if self._options.keys() & {"-b", "--use-blacklist"} and self._rules.blacklisted(name):
            return True
        if name in self._tree.live_modules and "--first-time" in self._options:
            self._log("ERROR", f"could not insert '{name}': Module already in kernel")
            return False
        return self._insert(name, parameters)

    def remove(self, wanted: str) -> bool:
        """Run `modprobe -r NAME`: also removes dependencies that are no longer used."""
        name = wanted.replace("-", "_")
        tree = self._tree
        if self._is_built_in(name):
            self._log("FATAL", f"Module {name} is builtin.")
            return False
        if name not in tree.live_modules:
            if name not in self._index:
                self._log("FATAL", f"Module {wanted} not found.")
                return False
            if "--first-time" in self._options:
                self._log("FATAL", f"Module {name} is not in kernel.")
            return "--first-time" not in self._options
        if refcnt(tree, name, self._now) > 0:
            self._log("FATAL", f"Module {name} is in use.")
            return False
        if self._is_dry_run(f"rmmod {name}"):
            return True
        if modules_are_locked(tree):
            self._log("ERROR", f"could not remove '{name}': Operation not permitted")
            return False
        remove_modules(tree, name)
        self.seconds += _SECONDS.get(name, 0.1)
        dependencies = self._index.get(name, ())
        for dependency in sorted(dependencies, key=lambda name: -len(self._index.get(name, ()))):
            if dependency in tree.live_modules and refcnt(tree, dependency, self._now) == 0:
                self._is_dry_run(f"rmmod {dependency}")
                remove_modules(tree, dependency)
        return True

    def _insert(self, name: str, parameters: Mapping[str, str], pending: tuple[str, ...] = ()) -> bool:
        if name in self._tree.live_modules or name in pending:
            return True
        for dependency in reversed(self._index.get(name, ())):
            if not self._insert(dependency, {}, (*pending, name)):
                return False
        line = self._rules.install_line(name)
        if line is not None and not self._options.keys() & {"-i", "--ignore-install"}:
            succeeded = self._run_install_line(name, line)
            if succeeded is not None:
                return succeeded
        configured = (self._configured.get(key, {}) for key in (name, self._file_names.get(name, name)))
        parameters = {key: value for options in (*configured, parameters) for key, value in options.items()}
        text = " ".join(f"{key}={value}" for key, value in parameters.items())
        if self._is_dry_run(f"insmod {self._path(name)} {text}"):
            return True
        refusal = insert_module(self._tree, name, parameters, self._now)
        self.seconds += _SECONDS.get(name, 0.1)
        if refusal is not None:
            self._log("ERROR", f"could not insert '{name}': {refusal.error}")
            return False
        self._autoload(name)
        return True

    def _autoload(self, name: str) -> None:
        """Load what udev loads by alias and softdep lines ask for, unless blacklisted; print no errors."""
        saved_lines = list(self.lines)
        by_device = [RDMA_MODULE_OF[name]] if name in RDMA_MODULE_OF else []  # that the module creates
        for other in (*by_device, *self._softdeps.get(name, ())):
            if other in self._index and not self._rules.blacklisted(other):
                self._insert(other, {})
        self.lines = saved_lines

    def _run_install_line(self, name: str, line: InstallLine) -> bool | None:
        """Run the command of an install line; None if the module is loaded after all."""
        command = line.command.split()
        if loaded_by(line.command) is not None:
            return None
        if command and command[0] in _NO_OP_COMMANDS:
            return True
        if not command or command[0] not in _FAILING_COMMANDS:
            self.lines.extend(unsupported(line.command).lines)
        error = f"Error running install command '{line.command}' for module {name}: retcode 1"
        self._log("ERROR", f"../libkmod/libkmod-module.c:1084 command_do() {error}")
        self._log("ERROR", f"could not insert '{name}': {INVALID.error}")
        return False

    def _is_built_in(self, name: str) -> bool:
        listed = self._tree.text(f"/lib/modules/{self._tree.description.kernel}/modules.builtin")
        return any(line.rpartition("/")[2].replace("-", "_") == f"{name}.ko" for line in listed.splitlines())

    def _path(self, name: str) -> str:
        kernel = f"/lib/modules/{self._tree.description.kernel}"
        lines = self._tree.text(f"{kernel}/modules.dep").splitlines()
        files = (line.partition(":")[0] for line in lines)
        wanted = self._file_names.get(name, name)
        file = next((file for file in files if module_of_file(file) == wanted), f"{wanted}.ko")
        return f"{kernel}/{file}"

    def _is_dry_run(self, line: str) -> bool:
        """Print the command with -v, and return whether it is not run (-n)."""
        dry = bool(self._options.keys() & {"-n", "--dry-run", "--show"})
        if self._options.keys() & {"-v", "--verbose"}:
            self.lines.append(line)
        return dry

    def _log(self, level: str, text: str) -> None:
        self.lines.append(f"modprobe: {level}: {text}")


def modprobe(call: Invocation) -> CommandResult:
    """Load or unload modules with their dependencies."""
    options, words = split_options(call.args, valued="w")
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        option = unknown[0]
        if option.startswith("--"):
            return failed(f"modprobe: unrecognized option '{option}'")
        return failed(f"modprobe: invalid option -- '{option[1:]}'")
    if not words:
        return failed("modprobe: ERROR: missing parameters. See -h.")
    command = _Modprobe(call, options)
    if options.keys() & {"-r", "--remove"}:
        results = [command.remove(word) for word in words]
    elif options.keys() & {"-a", "--all"}:
        results = [command.insert(word, {}) for word in words]
    else:
        parameters = (word.partition("=")[::2] for word in words[1:])
        results = [command.insert(words[0], {key.replace("-", "_"): value for key, value in parameters})]
    return CommandResult(tuple(command.lines), 0 if all(results) else 1, round(command.seconds, 1))


def rmmod(call: Invocation) -> CommandResult:
    """Unload modules that are not in use."""
    options, words = split_options(call.args)
    if not words:
        return failed("rmmod: ERROR: missing module name.")
    lines: list[str] = []
    for word in words:
        name = word.replace("-", "_")
        users = users_of(call.tree, name)
        if name not in call.tree.live_modules:
            lines.append(f"rmmod: ERROR: Module {name} is not currently loaded")
        elif users and "-f" not in options:
            lines.append(f"rmmod: ERROR: Module {name} is in use by: {' '.join(users)}")
        elif refcnt(call.tree, name, call.seconds) > 0:
            # Hardly any kernel supports -f (CONFIG_MODULE_FORCE_UNLOAD).
            forced = f"rmmod: ERROR: could not remove module {word}: Resource temporarily unavailable"
            lines.append(forced if "-f" in options else f"rmmod: ERROR: Module {name} is in use")
        elif modules_are_locked(call.tree):
            lines.append(f"rmmod: ERROR: could not remove module {word}: Operation not permitted")
        else:
            remove_modules(call.tree, name)
    return CommandResult(tuple(lines), 1 if lines else 0, 0.1 * len(words))


def _parameters(cmdline: str, options: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return module -> parameters: those of the command line, then the `options` of modprobe.d."""
    found: dict[str, dict[str, str]] = {}
    for word in cmdline.replace('"', "").split():
        name, equals, value = word.partition("=")
        module, dot, parameter = name.replace("-", "_").partition(".")
        if dot and equals:
            found.setdefault(module, {})[parameter] = value
    return {module: {**found.get(module, {}), **options.get(module, {})} for module in {*found, *options}}


COMMANDS = {"modprobe": modprobe, "rmmod": rmmod}
