"""A node that a collector reads: its answers become what every host answers."""

from __future__ import annotations

import base64
import errno
import os
import threading
import time
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from probes.base.origin import Origin, Source
from probes.base.text import clean_text, printable, printable_lines, text_of
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.host import trusted_path
from probes.host.fec import FecState
from probes.host.machine import ethtool_netlink, tcp_socket_reader
from probes.host.machine.ethtool_socket import EthtoolReader
from probes.host.machine.files import unknown_from
from probes.host.machine.kernel_log_reader import parse_record
from probes.host.machine.library_probes import probe_cuda, probe_data_direct, probe_dmabuf
from probes.host.machine.local import GpuLibraries
from probes.host.machine.rdma_netlink import Answer, Command, request
from probes.host.machine.rdma_reader import SECONDS, ResourceReader, is_final, resources_from_command
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import (
    READ_LIMIT_BYTES,
    CommandOutput,
    CudaGpu,
    FileRange,
    HostBase,
    KernelMessage,
    read_collectives,
    refused,
)
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.remote import nvidia_smi
from probes.host.remote.collector import KERNEL_LOG, UNFINISHED
from probes.host.remote.transport import plain_source
from probes.host.tcp_sockets import SOCK_DIAG, TcpSocket, read_socket_inodes
from probes.host.tcp_sockets import request as sockets_request
from probes.host.usage import read_counters, read_thread_names, read_usage

T = TypeVar("T")
Question = tuple[Any, ...]
"""A question of the collector: its kind, then its arguments."""
NOT_ASKED_YET = Unknown(Reason.NOT_RECORDED, "", "not asked yet")
_SMI_SECONDS = 20.0  # without the persistence daemon it initializes every GPU
_SMI_EVERY_SECONDS = 5.0
_MOST_ERRNO = 4096  # MAX_ERRNO of the kernel
_LONGEST_SECONDS = 1e11  # of a clock: the year 5138
_MOST_SIZE = 1 << 63
_ERRNOS = {
    Reason.NOT_THERE: errno.ENOENT,
    Reason.NEEDS_ROOT: errno.EPERM,
    Reason.TIMED_OUT: errno.ETIMEDOUT,
    Reason.NOT_RECORDED: errno.EAGAIN,
    Reason.IO_ERROR: errno.ENOTCONN,
}


_TRUST_SECONDS = 4.0


def is_of_site(question: Question) -> bool:
    """Return whether files of a node have named it: it is for this node alone, and only when it is needed."""
    return bool(question[0] == "program" and question[2] == plain_source(Path(trusted_path.__file__)))


def is_unfinished(answer: Any) -> bool:
    """Return whether an answer comes only when the question is asked again: a command there takes long."""
    return isinstance(answer, dict) and answer.get("errno") == UNFINISHED


class CollectedHost(HostBase):
    """A node whose answers come from a collector; a subclass gets them."""

    UNANSWERED = (Reason.NOT_RECORDED, "not read over a connection")

    def __init__(self, name: str, is_root: bool) -> None:
        self.origin = Origin(Source.REMOTE, printable(name))
        self._is_root = is_root
        self._libraries = GpuLibraries(self)
        self._ethtool = EthtoolReader()
        self._resources = ResourceReader()
        self._smi_lock = threading.Lock()
        self._smi_output: tuple[float, Maybe[str]] = 0.0, Unknown(Reason.NOT_RECORDED, "NVML")
        self._log_number = -1  # of the newest message of the kernel that was returned
        # This machine's monotonic clock, and both clocks of the node.
        self._clocks: tuple[float | None, float, float] = None, 0.0, 0.0

    @abstractmethod
    def _answer_to(self, question: Question, source: str) -> Maybe[Any]:
        """Return the collector's answer, as it was sent, or why there is none."""

    def _ask(self, kind: str, *subject: Any, source: str = "") -> Maybe[Any]:
        """Return the value that the collector answers to a question."""
        source = source or str(subject[0])
        return self._value(self._answer_to((kind, *subject), source), source)

    def _value(self, answer: Maybe[Any], source: str) -> Maybe[Any]:
        if isinstance(answer, Unknown):
            return answer
        if type(answer) is int and 0 < answer < _MOST_ERRNO:
            return unknown_from(OSError(answer, os.strerror(answer)), source, self._is_root)
        if not isinstance(answer, dict):
            return _garbled(source)
        if "value" in answer:
            return answer["value"]
        number, detail = answer.get("errno"), answer.get("detail")
        if type(number) is not int or not 0 < number < _MOST_ERRNO or not isinstance(detail, str):
            return _garbled(source)
        if number == UNFINISHED:
            return Unknown(Reason.TIMED_OUT, source, printable(detail, 200))
        unknown = unknown_from(OSError(number, printable(detail, 200)), source, self._is_root)
        # Words of the collector say more than those of the kernel.
        is_own = not unknown.detail and detail != os.strerror(number)
        return Unknown(unknown.reason, unknown.source, printable(detail, 200)) if is_own else unknown

    def _typed(self, kind: type[T], name: str, *subject: Any, source: str = "") -> Maybe[T]:
        """Return an answer of this type; MALFORMED: the collector sent another one."""
        source = source or str(subject[0])
        answer = self._answer_to((name, *subject), source)
        if isinstance(answer, dict) and isinstance(value := answer.get("value"), kind):  # mostly
            return value
        value = self._value(answer, source)
        return value if isinstance(value, (Unknown, kind)) else _garbled(source)

    def _set_clocks(self, message: Mapping[str, Any], is_new: bool) -> bool:
        """Take the node's clocks from a message; False: it has none. Those of an old one stand still."""
        there, wall = message.get("monotonic"), message.get("wall")
        if not isinstance(there, float) or not isinstance(wall, float):
            return False
        if not all(0.0 <= clock < _LONGEST_SECONDS for clock in (there, wall)):  # NaN is not either
            return False
        # The collector reads its clocks after the last answer, however long the answers took.
        self._clocks = time.monotonic() if is_new else None, there, wall
        return True

    # Files

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        return map_known(self._typed(str, "file", path, limit), _bytes)

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        content = self._typed(str, "file", path, limit)
        if isinstance(content, str) and content.isascii():  # mostly: there is nothing to decode
            return clean_text(content)
        return map_known(map_known(content, _bytes), text_of)

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        def file_range(value: list[Any]) -> Maybe[FileRange]:
            match value:
                case [str(content), int(size), str(file), int(owner)] if 0 <= size < _MOST_SIZE:
                    return map_known(
                        _bytes(content), lambda read: FileRange(read, size, printable(file), owner)
                    )
            return _garbled(path)

        return map_known(self._typed(list, "file_range", path, offset, limit), file_range)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        def checked(value: list[Any]) -> Maybe[tuple[str, ...]]:
            is_right = all(isinstance(name, str) and name and "/" not in name for name in value)
            return tuple(value) if is_right else _garbled(path)

        return map_known(self._typed(list, "names", path), checked)

    def link(self, path: str) -> Maybe[str]:
        return self._typed(str, "link", path)

    def resolve(self, path: str) -> Maybe[str]:
        return self._typed(str, "resolve", path)

    def size(self, path: str) -> Maybe[int]:
        size = self._typed(int, "size", path)
        return map_known(size, lambda count: count if 0 <= count < _MOST_SIZE else _garbled(path))

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        kind = "writable" if write else "readable"
        answer = self._answer_to((kind, path), path)
        number = answer.get("errno") if isinstance(answer, dict) else answer
        value = refused(path) if number == errno.EPERM else self._value(answer, path)
        return value if isinstance(value, (Unknown, bool)) else _garbled(path)

    def environment(self, name: str) -> Maybe[str]:
        return map_known(self._typed(str, "environment", name), printable)

    # Commands, and programs of gdrtop's own

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        answer = self._typed(list, "run", seconds, *argv, source=argv[0])
        return map_known(answer, lambda value: _output(value, tuple(argv)))

    def _child(
        self, file: str, arguments: Sequence[str], seconds: float, name: tuple[str, ...]
    ) -> Maybe[CommandOutput]:
        answer = self._typed(list, "program", seconds, plain_source(Path(file)), *arguments, source=name[0])
        return map_known(answer, lambda value: _output(value, name))

    def trusted_bytes(self, path: str) -> Maybe[bytes]:
        if not self._is_root:
            return self.read_bytes(path)
        output = self._child(trusted_path.__file__, ("", path), _TRUST_SECONDS, (path,))
        if isinstance(output, Unknown):
            return output
        if output.exit_status:
            return Unknown(Reason.NEEDS_PERMISSION, printable(path), printable(output.stderr.strip(), 200))
        return self.read_bytes(output.stdout)

    def run_trusted(self, argv: Sequence[str], seconds: float, user: str) -> Maybe[CommandOutput]:
        return self._child(trusted_path.__file__, (user, *argv), seconds, tuple(argv))

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        return probe_dmabuf(devices, child=self._child)

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        return probe_data_direct(devices, child=self._child)

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        why = self._libraries.why_no_cuda()
        return probe_cuda(child=self._child) if why is None else why

    # NVML: its library is on the node, its Python module perhaps not

    def nvml(self) -> Maybe[NvmlFacts]:
        facts = map_known(self._smi(), nvidia_smi.parse_facts)
        if isinstance(facts, Unknown):
            return facts
        more = [
            map_known(self.run(argv, _SMI_SECONDS), _text)
            for argv in (nvidia_smi.CAPABILITIES, nvidia_smi.NVLINKS)
        ]
        return nvidia_smi.with_nvlinks(nvidia_smi.with_capabilities(facts, more[0]), more[1])

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        return map_known(self._smi(), nvidia_smi.parse_live)

    def _smi(self) -> Maybe[str]:
        """Return the output of nvidia-smi, which may be some seconds old: it takes a second on eight GPUs."""
        with self._smi_lock:
            at, text = self._smi_output
            if isinstance(text, Unknown) or time.monotonic() - at > _SMI_EVERY_SECONDS:
                why = self._libraries.why_no_nvml()
                text = map_known(self.run(nvidia_smi.QUERY, _SMI_SECONDS), _text) if why is None else why
                self._smi_output = time.monotonic(), text
            return text

    # Processes and networks

    process_usage = read_usage
    thread_names = read_thread_names
    socket_inodes = read_socket_inodes
    interface_counters = read_counters
    collectives = read_collectives

    def rdma_resources(self) -> Maybe[RdmaResources]:
        kernel = _Kernel(self)
        answer = self._resources.read(kernel=kernel)
        if kernel.is_unasked:
            return NOT_ASKED_YET
        if is_final(answer):
            return answer
        by_command = resources_from_command(self.run)
        return answer if isinstance(by_command, Unknown) else by_command

    def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
        kernel = _Kernel(self)
        answer = self._resources.read_packets(kernel=kernel)
        return NOT_ASKED_YET if kernel.is_unasked else answer

    def rdma_statistics(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        kernel = _Kernel(self)
        answers = self._resources.read_statistics(names, kernel=kernel)
        return dict.fromkeys(names, NOT_ASKED_YET) if kernel.is_unasked else answers

    def tcp_sockets(self) -> Maybe[tuple[TcpSocket, ...]]:
        if (why := tcp_socket_reader.why_not_asked(self)) is not None:
            return why
        kernel = _Kernel(self)
        answer = tcp_socket_reader.read_sockets(
            lambda family: kernel.exchange(tcp_socket_reader.SECONDS, sockets_request(family, 1), SOCK_DIAG)
        )
        return NOT_ASKED_YET if kernel.is_unasked else answer

    def datagrams(self, seconds: float, content: str, *protocol: int) -> list[tuple[bytes, bool]]:
        """Return what the kernel answers to a netlink request, and whether each was cut; or OSError."""
        answer = self._typed(list, "netlink", seconds, content, *protocol, source="RDMA netlink")
        if isinstance(answer, Unknown):
            raise OSError(_ERRNOS.get(answer.reason, errno.EIO), answer.detail)
        found: list[tuple[bytes, bool]] = []
        for row in answer:
            match row:
                case [str(datagram), bool(is_cut)]:
                    found.append((datagram.encode("latin-1", "replace"), is_cut))
                case _:
                    raise OSError(errno.EPROTO, "the answer is garbled")
        return found

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        return {name: self._ethtool.counters(self._ioctl, name) for name in names}

    def fec_states(self, names: Sequence[str]) -> Mapping[str, Maybe[FecState]]:
        if not names:
            return {}
        kernel = _Kernel(self)
        seconds = ethtool_netlink.SECONDS
        answers = ethtool_netlink.read_fec(
            names, lambda request: kernel.exchange(seconds, request(1), ethtool_netlink.GENERIC)
        )
        return dict.fromkeys(names, NOT_ASKED_YET) if kernel.is_unasked else answers

    def _ioctl(self, name: str, command: bytes, more: int) -> bytes:
        answer = self._typed(str, "ethtool", name, command.decode("latin-1"), more)
        content = map_known(answer, lambda text: _inflated(text, len(command) + more))
        if isinstance(content, Unknown):
            raise OSError(_ERRNOS.get(content.reason, errno.EIO), content.detail)
        return content.ljust(len(command) + more, b"\0")

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        answer = self._typed(list, "kernel_log", self._log_number, source=KERNEL_LOG)
        match answer:
            case Unknown():
                return answer
            case [int(newest), list(records)] if abs(newest) < _MOST_SIZE and all(
                isinstance(record, str) for record in records
            ):
                self._log_number = newest
                found = (parse_record(record.encode("latin-1", "replace")) for record in records)
                return tuple(message for message in found if message is not None)
        return _garbled(KERNEL_LOG)

    def is_root(self) -> bool:
        return self._is_root

    def monotonic(self) -> float:
        here, there, _ = self._clocks
        return there if here is None else there + time.monotonic() - here

    def wall_clock(self) -> float:
        here, _, wall = self._clocks
        return wall if here is None else wall + time.monotonic() - here


class _Kernel:
    """Netlink on the node: each request goes there by itself, or ahead with the others."""

    def __init__(self, host: CollectedHost) -> None:
        self._host = host
        self.is_unasked = False  # a question has no answer yet

    def ask(self, command: Command, device: int | None = None, port: int | None = None) -> Answer:
        return self.exchange(SECONDS, request(command, 1, device, port))

    def exchange(self, seconds: float, content: bytes, *protocol: int) -> Answer:
        """Return the answer to a request of sequence number 1, or raise OSError; of no protocol: RDMA's."""
        answer = Answer(1)
        try:
            datagrams = self._host.datagrams(seconds, content.decode("latin-1"), *protocol)
        except BlockingIOError:  # an empty answer lets the reader ask all of its questions in one round
            self.is_unasked = True
            return answer
        for datagram, is_cut in datagrams:
            answer.is_interrupted |= is_cut
            answer.add(datagram)
        return answer


def _bytes(text: str) -> Maybe[bytes]:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return _garbled("")


def _inflated(text: str, most: int) -> Maybe[bytes]:
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), most)
    except (zlib.error, ValueError):
        return _garbled("ethtool -S")


def _garbled(source: str) -> Unknown:
    return Unknown(Reason.MALFORMED, printable(source), "the answer is garbled")


def _output(value: list[Any], argv: tuple[str, ...]) -> Maybe[CommandOutput]:
    match value:
        case [int(status), str(output), str(errors), int(left_out)] if (
            abs(status) < _MOST_ERRNO and 0 <= left_out < _MOST_SIZE
        ):
            return CommandOutput(argv, status, _shown(output), _shown(errors), left_out)
    return _garbled(argv[0])


def _shown(text: str) -> str:
    return printable_lines(text.encode("latin-1", "replace").decode("utf-8", "replace"))


def _text(output: CommandOutput) -> Maybe[str]:
    if output.exit_status:
        detail = printable(output.stderr or output.stdout, 200)
        return Unknown(Reason.DRIVER_ERROR, " ".join(output.argv), detail)
    return output.stdout
