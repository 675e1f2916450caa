"""Identifiers in the answers of a node: counted and, on request, replaced by tokens.

Redaction is an allowlist: of each source, only what FILES names is kept, and of texts only known words. A
value gets the same token everywhere, in questions and in answers, and a token has the shape of its value, so
that probes read the recording like the node.

With or without redaction, a recording has no passwords: it has only the environment variables that probes
keep, no arguments of command lines, and of files that users choose only what NCCL reads.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from gzip import compress
from typing import Any, NamedTuple, TypeVar

from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.process_files import (
    is_overwritten,
    parse_program,
    parse_serving_options,
    serving_words,
)
from probes.facts.kernel.release import unpack
from probes.facts.pci.functions import MARK
from probes.facts.system.limits import CGROUPS
from probes.facts.system.platform import AZURE_TAG, ORACLE_TAG
from probes.facts.system.site_checks import DIRECTORY as CHECKS_OF_SITE
from probes.facts.system.tools import DIRECTORIES as PROGRAM_DIRECTORIES
from probes.host.nvml import NvmlFacts
from probes.host.protocol import CommandOutput
from probes.host.usage import ProcessUsage
from probes.recording.format import Question
from probes.recording.recording_host import Moment
from probes.recording.redaction import answers as rules
from probes.recording.redaction import config_files, kernel_files
from probes.recording.redaction.basic_rules import Rule, figures, kept_where, of_lines, of_text
from probes.recording.redaction.kernel_files import cgroup_path, host_name, is_variable, thread_name
from probes.recording.redaction.tokens import PROGRAMS, SERIAL, USER, Tokens

# What a redacted recording keeps of each source: one table, in which the first matching row counts.


class Row(NamedTuple):
    """Paths (`*`: one part, `**`: any number of parts, `|`: or) and the rule for files there."""

    paths: str
    rule: Rule | None  # None: only existence, size and link target, no content


_WORDS, _FIGURES = of_text(Tokens.text), of_text(figures)
_CPU_MASK = r"[0-9a-f]{1,8}(?:,[0-9a-f]{8}){0,255}\s*"
_COUNTERS = (
    *("**/counters/*", "**/hw_counters/*", "**/statistics/*", "**/aer_dev_*", "**/meminfo"),
    *("**/cgroup.procs", "kernel/mm/memory_peers/**"),
)
_SLURM = of_lines(r"(?i)\s*(?:prolog(?:flags)?|propagateresourcelimitsexcept)\s*=")
_OS_RELEASE = of_lines("(?:PRETTY_NAME|NAME|ID|ID_LIKE|VERSION_ID|VARIANT_ID)=")
FILES: Sequence[Row] = (
    Row("/proc/cmdline", of_text(config_files.kernel_parameters)),
    Row("/proc/cpuinfo", of_text(kernel_files.cpuinfo)),
    Row("/proc/config.gz", lambda t, gz: compress(config_files.kernel_config(t, unpack(gz)), mtime=0)),
    Row("/proc/driver/nvidia/**", _WORDS),
    Row("/proc/version", of_lines("Linux version", lambda t, line: t.text(" ".join(line.split()[:3])))),
    Row(
        "/proc/sys/kernel/hostname|/etc/hostname",
        of_text(lambda t, text: host_name(t, text.partition("\n")[0]) + "\n"),
    ),
    Row("/proc/sys/**", _WORDS),
    Row("/proc/net/tcp|/proc/net/tcp6", of_text(kernel_files.listening_sockets)),
    Row("/proc/net/route|/proc/*/net/route", of_text(kernel_files.routes)),
    Row("/proc/net/ipv6_route|/proc/*/net/ipv6_route", of_text(kernel_files.ipv6_routes)),
    Row("/proc/*/comm|/proc/*/task/*/comm", of_text(lambda t, text: f"{thread_name(t, text.strip())}\n")),
    Row("/proc/*/status", of_text(kernel_files.status)),
    Row("/proc/*/stat", of_text(kernel_files.stat)),
    Row("/proc/*/limits", of_lines("Limit |Max (?:locked memory|stack size) ", figures)),
    Row("/proc/*/environ", kernel_files.environment),
    Row("/proc/*/cmdline", kernel_files.command_line),
    Row("/proc/*/maps", of_text(kernel_files.maps)),
    Row("/proc/*/cgroup|/proc/*/cpuset", of_text(kernel_files.cgroup)),
    Row("/proc/*/mounts|/proc/*/mountinfo", _WORDS),
    Row("/proc/*/fd/*|/proc/*/fdinfo/*|/proc/*/fd|/proc/*/ns/net", None),
    Row("/proc/*/root/**.conf|/proc/*/cwd/**.conf|/etc/nccl.conf", config_files.NCCL_CONF),
    Row("/proc/*/root/dev/**", None),
    Row("/proc/irq/*/effective_affinity_list", _FIGURES),
    Row("/proc/*/root/**/pkgconfig/ucx.pc", of_lines(r"Version: ?[0-9]{1,2}(?:\.[0-9]{1,3}){2}$")),
    Row("/proc/*/root/**|/proc/*/cwd/**", config_files.TOPOLOGY),
    Row("/proc/*/*", None),
    Row("/proc/mounts|/proc/modules|/proc/filesystems", _WORDS),
    Row("/proc/meminfo|/proc/uptime", _FIGURES),
    Row("/proc/devices|/proc/xen/*", _WORDS),
    Row("/proc/*|/proc", None),
    Row("/sys/module/*/srcversion", kept_where(r"[0-9A-F]{24,33}\s*")),
    Row(
        "/sys/class/infiniband/*/board_id",
        kept_where(r"(?:MT_|SM_|HP_|FB_|DEL|HPE|LNV|MSF|NVD|IBM|ISR|INL|ORC)[0-9]{10}\s*"),
    ),
    Row("/sys/**/config", kernel_files.pci_config),
    Row("/sys/**/vpd", lambda _, content: MARK if MARK in content else b""),  # it has part and serial numbers
    Row("/sys/**/resource", kept_where(r"(?:0x[0-9a-f]{16} 0x[0-9a-f]{16} 0x[0-9a-f]{16}\n?){1,32}")),
    Row("/sys/**/local_cpus|/sys/**/cpumap", kept_where(_CPU_MASK)),
    Row("/sys/class/dmi/id/chassis_asset_tag", kept_where(rf"{AZURE_TAG}\s*|{re.escape(ORACLE_TAG)}\s*")),
    Row("/sys/class/dmi/id/bios_version", kept_where(r"[A-Z]{0,4}[0-9][0-9A-Za-z.]{0,15}\s*")),
    Row("/sys/firmware/efi/efivars/Loader*", config_files.boot_variable),
    Row("/sys/firmware/efi/efivars/*", kept_where(r"[\0-\x1f]\0\0\0[\0\1]")),
    *(Row(f"/sys/{path}", _FIGURES) for path in _COUNTERS),
    Row("/sys/**/pkeys/*", of_text(kernel_files.partition_key)),
    Row("/sys/**/telemetry/*", kept_where(r"[0-9]{1,20}@[0-9]{1,20}\.[0-9]{9}\s*")),
    Row("/sys/kernel/debug/dma_buf/bufinfo", of_text(kernel_files.dma_buffers)),
    Row("/sys/**", _WORDS),
    Row("/etc/os-release|/usr/lib/os-release", _OS_RELEASE),
    Row("/etc/tuned/active_profile", _WORDS),
    Row("/etc/passwd", of_text(config_files.passwd)),
    Row("/etc/security/limits**.conf", of_text(config_files.limits_conf)),
    Row("**/systemd/**", of_lines(r"\s*(?:\[\w+\]|LimitMEMLOCK|DefaultLimitMEMLOCK)", figures)),
    Row(
        "**/modprobe.d/*|**/modules-load.d/*|/etc/modules|/etc/rdma/**",
        of_text(config_files.without_comments),
    ),
    Row("/etc/default/grub**|/boot/grub*/grubenv", of_text(config_files.grub_settings)),
    Row("/etc/slurm**.conf|/run/slurm/conf/**.conf", _SLURM),
    Row("/etc/dkms/framework.conf**", of_lines(r"\s*mok_certificate=")),
    Row(f"{CHECKS_OF_SITE}/*.toml", _WORDS),
    Row("/etc/**", None),
    Row("/boot/grub*/grub.cfg", of_text(config_files.grub_menu)),
    Row("**/loader/loader.conf", of_lines(r"default\s")),
    Row("/opt/amazon/efa_installed_packages|/opt/nvidia/nvlsm/**|/home/kubernetes|/efi/**", None),
    Row("/boot/config-*|/lib/modules/*/config", config_files.kernel_config),
    Row("**/modules.dep|**/modules.builtin", config_files.module_lines),
    Row("**/modules.symbols|**/Module.symvers", config_files.symbol_lines),
    Row("/var/run/nvidia-topologyd/**|/opt/microsoft/*/topo.xml", config_files.TOPOLOGY),
    *(Row(f"{directory}/*", rules.program_strings) for directory in PROGRAM_DIRECTORIES),
    Row("/dev|/dev/**", None),
    *(Row(f"/{top}/**", None) for top in ("boot", "lib", "lib64", "usr", "var", "run")),
    Row("/.dockerenv", None),
)
COMMANDS: dict[str, Callable[[Tokens, str], str]] = {
    "dmesg": rules.kernel_log,
    "journalctl": rules.kernel_log,
    "modinfo": rules.modinfo,
    "modprobe": rules.symbol_versions,
    "lldpctl": rules.neighbors,
    "setpriv": rules.neighbors,  # which runs lldpctl
    "kubectl": rules.cluster_objects,
    "oc": rules.cluster_objects,
}
"""Rules for the output of commands; in the output of other known programs, unknown words are replaced."""
ENVIRONMENT = ("KUBERNETES_SERVICE_HOST", "container", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
"""Variables of gdrtop's own session that are kept, with unknown words in their values replaced."""


def _expression(paths: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*|\*|\|)", paths)
    wildcards = {"**": ".*", "*": "[^/]*", "|": "|"}
    return re.compile("".join(wildcards.get(piece, re.escape(piece)) for piece in pieces), re.S)


_COMPILED = tuple((_expression(row.paths), row) for row in FILES)


_OF_POD = re.compile(r"/proc/[0-9]+/root(/sys/class/infiniband/.*)", re.S)


def row_of(path: str) -> Row | None:
    """Return the row of a path; None if nothing of it is kept."""
    if "/../" not in path and (match := _OF_POD.fullmatch(path)):  # the pod's own sysfs has the same files
        path = match[1]
    return next((row for pattern, row in _COMPILED if pattern.fullmatch(path)), None)


def read_by_nccl(path: str, content: bytes) -> bytes:
    """Keep only what NCCL reads in a file that a user chose: NCCL_TOPO_FILE and links can point anywhere."""
    row = row_of(path)
    if row is not None and row.rule not in (None, config_files.TOPOLOGY, config_files.NCCL_CONF):
        return content
    if path.endswith(".conf"):
        return b"\n".join(line if b"NCCL_" in line else b"" for line in content.split(b"\n"))
    return content if b"<system" in content else b""


T = TypeVar("T")
_PROCESS_FILE = re.compile(r"/proc/([0-9]+)/([a-z]+)")
_OPEN_FILE = re.compile(r"/proc/[^/]+/fd/[0-9]+")
_DEVICE_FILE = re.compile(r"/dev/(?:nvidia[\w/-]*|infiniband/[\w]+)")
_ENVIRONMENT = re.compile(r"/proc/.*/environ")
# Files outside the system or of another user, read because a variable, an nccl.conf or a link points there.
_CHOSEN = re.compile(r"/proc/[^/]+/(?:root|cwd)/.*|/(?!(?:proc|sys|dev|boot|usr|lib|run|var)/).*", re.S)
PATH_QUESTIONS = ("file", "names", "link", "resolve", "size", "readable", "writable")
_HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")
_USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER")
# Stands for the command line of a process without GPU or RDMA device: a program, not a kernel thread.
NO_COMMAND_LINE = b"(not recorded)\0"

# Rules for answers by kind of question; of the others, every text is redacted.
_RULES: dict[str, Callable[[Tokens, Any], Any]] = {
    "rdma_resources": rules.resources,
    "packet_numbers": rules.packets,
    "tcp_sockets": rules.sockets,
    "namespace_sockets": rules.sockets,
    "rdma_statistics": lambda tokens, answer: rules.statistics(answer),
    "thread_names": lambda tokens, names: tuple(sorted({thread_name(tokens, name) for name in names})),
    "collectives": rules.collectives,
    "component_history": rules.component_history,
    "log_findings": rules.log_findings,
    "fec_states": lambda tokens, answer: rules.fec(answer),
    "ethtool_counters": lambda tokens, answer: rules.counters(answer),
    "kernel_messages": rules.messages,
    "ras_answer": rules.ras_text,
    "ras_events": lambda tokens, events: tuple(rules.ras_text(tokens, event) for event in events),
    "names": lambda tokens, names: tuple(sorted({tokens.text(name) for name in names})),
}


class Identifiers(Tokens):
    """The identifiers of a node, its users and its devices in a recording; replaced if `redact` is set."""

    def __init__(self, redact: bool = False) -> None:
        super().__init__()
        self.redact = redact
        self._jobs: set[str] = set()  # pids whose maps, environment or limits were read

    def host(self, name: str) -> str:
        """Return a host name as it appears in the recording."""
        return host_name(self, name) if self.redact else name

    def label(self, label: str) -> str:
        """Return the origin's label, a directory or a simulated node, as it appears in the recording."""
        return self.text(label) if self.redact else label

    def value(self, value: T) -> T:
        """Return what gdrtop wrote about the node, with the tokens of the recording.

        `value` consists of strings, numbers, containers and dataclasses.
        """
        if not self.redact:
            return value
        before, self._is_own_text = self._is_own_text, True
        try:
            redacted: T = self._value(value)
        finally:
            self._is_own_text = before
        return redacted

    def apply(self, moment: Moment) -> Moment:
        """Return the moment as it is recorded."""
        self._learn(moment)
        moment = dataclasses.replace(moment, answers=self._without_secrets(moment.answers))
        # Also without redaction: the kinds of identifiers in the recording are reported.
        answers = {
            redacted: self._answer(question, answer)
            for question, answer in moment.answers.items()
            if (redacted := self._question(question)) is not None
        }
        return dataclasses.replace(moment, answers=answers) if self.redact else moment

    def _learn(self, moment: Moment) -> None:
        """Remember names of hosts and users, which are replaced everywhere, and the processes that matter."""
        for question, answer in moment.answers.items():
            subject = question.subject[0] if question.subject else ""
            match = _PROCESS_FILE.fullmatch(subject)
            if match and match[2] in ("maps", "environ", "limits"):
                self._jobs.add(match[1])
            elif question.kind == "file" and subject in _HOST_FILES and isinstance(answer, bytes):
                host_name(self, answer.decode("utf-8", "replace").partition("\n")[0])
            elif isinstance(answer, ProcessUsage):
                self.name(USER, known(answer.user, "root"))
            elif isinstance(answer, NvmlFacts):
                for gpu in answer.gpus:
                    self.name(SERIAL, known(map_known(gpu, lambda found: found.serial), ""))
            elif question.kind == "environment" and isinstance(answer, str):
                if subject == "HOSTNAME":
                    host_name(self, answer)
                elif subject in _USER_VARIABLES:
                    self.name(USER, answer)

    def _without_secrets(self, answers: dict[Question, Maybe[Any]]) -> dict[Question, Maybe[Any]]:
        """Reduce open files, environments and command lines to what probes keep of them."""
        kept = {key: answer for key, answer in answers.items() if not _is_other_file(key, answer)}
        for question, answer in answers.items():
            if question.kind != "file" or not isinstance(answer, bytes):
                continue
            match = _PROCESS_FILE.fullmatch(question.subject[0])
            if _ENVIRONMENT.fullmatch(question.subject[0]):
                variables = filter(is_variable, answer.split(b"\0"))
                reduced = b"".join(variable + b"\0" for variable in variables)
                kept[question] = b"\0" if is_overwritten(answer) else reduced
            elif match and match[2] == "cmdline" and match[1] not in self._jobs and answer:
                kept[question] = NO_COMMAND_LINE + serving_words(parse_serving_options(answer))
            elif match and match[2] == "cmdline" and answer and not self.redact:
                options = serving_words(parse_serving_options(answer))
                kept[question] = known(parse_program(answer), "").encode() + b"\0" + options
            elif _CHOSEN.fullmatch(question.subject[0]):
                kept[question] = read_by_nccl(question.subject[0], answer)
        return kept

    # Questions and answers

    def _question(self, question: Question) -> Question | None:
        """Return a question as it is recorded; None if it is left out."""
        kind, subject = question
        if kind in PATH_QUESTIONS:
            row = row_of(subject[0])
            is_group = subject[0].startswith(f"{CGROUPS}/")
            path = cgroup_path(self, subject[0]) if is_group else self.text(subject[0])
            return None if row is None else Question(kind, (path,))
        if kind == "run" and subject[0].startswith("/"):  # a program of the site, as its file names it
            return Question(kind, tuple(map(self.text, subject)))
        if kind == "run":
            # Options come from gdrtop; all other words may come from the node.
            argv = tuple(word if word.startswith("-") else self.text(word) for word in subject[1:])
            program = subject[0].rpartition("/")[2]
            return Question(kind, (program, *argv)) if program in PROGRAMS else None
        if kind == "environment":
            return question if subject[0] in ENVIRONMENT else None
        if kind in ("ras_answer", "ras_events"):  # a loopback address and a command
            return question
        return Question(kind, tuple(self.text(part) for part in subject))

    def _answer(self, question: Question, answer: Maybe[Any]) -> Maybe[Any]:
        if isinstance(answer, bytes):
            path = question.subject[0]
            row = row_of(path)
            if row is None or row.rule is None:
                return Unknown(Reason.NOT_RECORDED, self.text(path), "redacted")
            if answer.startswith(NO_COMMAND_LINE):
                return answer
            return row.rule(self, answer)
        if isinstance(answer, CommandOutput):
            return self._output(question.subject, answer)
        if isinstance(answer, ProcessUsage) and not isinstance(answer.user, Unknown):
            return dataclasses.replace(self._value(answer), user=self.name(USER, answer.user))
        if question.kind == "link" and isinstance(answer, str) and _OPEN_FILE.fullmatch(question.subject[0]):
            return answer  # a device: other open files are not recorded
        rule = None if isinstance(answer, Unknown) else _RULES.get(question.kind)
        return self._value(answer) if rule is None else rule(self, answer)

    def _output(self, argv: tuple[str, ...], output: CommandOutput) -> CommandOutput:
        rule = rules.help_text if "--help" in argv else COMMANDS.get(argv[0], Tokens.text)
        redacted = self._question(Question("run", argv))
        return CommandOutput(
            redacted.subject if redacted else (),
            output.exit_status,
            rule(self, output.stdout),
            self.text(output.stderr),
            output.left_out_bytes,
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, Unknown):  # the detail is gdrtop's own text
            return Unknown(value.reason, self.text(value.source), self.value(value.detail))
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, tuple | list):
            return type(value)(self._value(item) for item in value)
        if isinstance(value, dict):
            return {self._value(key): self._value(item) for key, item in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return type(value)(**{name: self._value(getattr(value, name)) for name in names})
        return value


def _is_other_file(question: Question, answer: Maybe[Any]) -> bool:
    """Return whether this is an open file other than a GPU or RDMA device; a busy node has many."""
    is_open_file = question.kind == "link" and _OPEN_FILE.fullmatch(question.subject[0]) is not None
    return is_open_file and isinstance(answer, str) and _DEVICE_FILE.fullmatch(answer) is None
