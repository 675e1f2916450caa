"""Plain values out of a pickle, without Python's unpickler: nothing in a dump can name code.

torch::jit::Pickler writes protocol 2 with lists, dicts, tuples, strings, numbers, booleans and None. Only the
opcodes of these are known here; all others, such as GLOBAL and REDUCE, end the reading. Every length is
checked against the bytes that are there, so a small file cannot ask for much memory. Keys are short texts, as
PyTorch writes them, so no opcode takes longer than its bytes are long.
Sources: pickletools.py; torch/csrc/jit/serialization/pickler.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MOST_VALUES = 3_000_000  # opcodes; each can take up to 100 bytes
_CHECKED = 4096  # opcodes between two looks at the clock
_LONGEST_KEY = 1000  # characters
_MARK = object()
_int32 = struct.Struct("<i").unpack_from
_uint16 = struct.Struct("<H").unpack_from
_uint32 = struct.Struct("<I").unpack_from
_double = struct.Struct(">d").unpack_from


class NotPlain(ValueError):
    """The bytes are no pickle of plain values; the message says where."""


def plain_values(content: bytes, is_over: Callable[[], bool] = lambda: False) -> Any:
    """Return the value of a pickle.

    `is_over`: whether the time is up, asked now and then.

    Raises:
        NotPlain: an opcode that is not allowed, a broken pickle, or the time is up.
    """
    try:
        return _Reader(content).read(is_over)
    except (IndexError, KeyError, TypeError, struct.error, OverflowError, ValueError) as error:
        if isinstance(error, NotPlain):
            raise
        raise NotPlain("the pickle is broken or cut off") from None


class _Reader:
    """A stack, a memo, and the place in the bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self, is_over: Callable[[], bool]) -> Any:
        """Return the value; the opcodes that a dump has in thousands are read here, for speed."""
        content, stack, memo = self._content, self._stack, self._memo
        push, at = stack.append, 0
        for count in range(MOST_VALUES):
            if not count % _CHECKED and is_over():
                raise NotPlain("reading it takes too long")
            code = content[at]
            at += 1
            if code == 0x68:  # BINGET
                push(memo[content[at]])
                at += 1
            elif code == 0x71:  # BINPUT
                memo[content[at]] = stack[-1]
                at += 1
            elif code == 0x72:  # LONG_BINPUT
                memo[_uint32(content, at)[0]] = stack[-1]
                at += 4
            elif code == 0x6A:  # LONG_BINGET
                push(memo[_uint32(content, at)[0]])
                at += 4
            elif code == 0x4B:  # BININT1
                push(content[at])
                at += 1
            elif code == 0x28:  # MARK
                push(_MARK)
            elif code == 0x2E:  # STOP
                (value,) = stack
                if value is _MARK:
                    break
                return value
            else:
                self._at = at
                opcode = _OPCODES.get(code)
                if opcode is None:
                    raise NotPlain(f"the pickle has an opcode that gdrtop does not allow (0x{code:02x})")
                opcode(self)
                at = self._at
        raise NotPlain("the pickle is broken, or has too many values")

    def number(self, unpack: Callable[[bytes, int], tuple[Any, ...]], size: int) -> None:
        self._stack.append(unpack(self._content, self._at)[0])
        self._at += size

    def push(self, value: object) -> None:
        self._stack.append(value)

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def text(self) -> None:
        (count,) = _uint32(self._content, self._at)
        self._at += 4
        self._stack.append(self._text(count))

    def _byte(self) -> int:
        value = self._content[self._at]
        self._at += 1
        return value

    def _bytes(self, count: int) -> bytes:
        piece = self._content[self._at : self._at + count]
        if len(piece) < count:
            raise NotPlain("the pickle is cut off")
        self._at += count
        return piece

    def _text(self, count: int) -> str:
        return self._bytes(count).decode("utf-8", "replace")

    def _since_mark(self) -> list[Any]:
        """Take what was pushed after the newest mark, and the mark."""
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise NotPlain("the pickle is broken")
        items = stack[at + 1 :]
        del stack[at:]
        return items

    def append(self) -> None:
        item = self._stack.pop()
        self._list().append(item)

    def appends(self) -> None:
        items = self._since_mark()
        self._list().extend(items)

    def _list(self) -> list[Any]:
        top = self._stack[-1]
        if type(top) is not list:
            raise NotPlain("the pickle is broken")
        return top

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def set_items(self) -> None:
        self._set(self._since_mark())

    def _set(self, items: list[Any]) -> None:
        top = self._stack[-1]
        if type(top) is not dict or len(items) % 2:
            raise NotPlain("the pickle is broken")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A file can choose the hash of other keys, and colliding ones take time with their square. Long
            # texts that are equal would be compared again and again.
            if type(key) is not str or len(key) > _LONGEST_KEY:
                raise NotPlain("the pickle has a key that is no short text")
            top[key] = value

    def tuple_of(self, count: int) -> None:
        items = self._stack[-count:]
        if len(items) < count:
            raise NotPlain("the pickle is broken")
        del self._stack[-count:]
        self._stack.append(tuple(items))

    def tuple_since_mark(self) -> None:
        self._stack.append(tuple(self._since_mark()))

    def long(self) -> None:
        self._stack.append(int.from_bytes(self._bytes(self._byte()), "little", signed=True))

    def short_text(self) -> None:
        self._stack.append(self._text(self._byte()))

    def skip(self, count: int) -> None:
        self._bytes(count)


_OPCODES: dict[int, Callable[[_Reader], None]] = {
    0x80: lambda reader: reader.skip(1),  # PROTO
    0x95: lambda reader: reader.skip(8),  # FRAME, of protocol 4
    0x4E: lambda reader: reader.push(None),  # NONE
    0x88: lambda reader: reader.push(True),  # NEWTRUE
    0x89: lambda reader: reader.push(False),  # NEWFALSE
    0x5D: lambda reader: reader.push([]),  # EMPTY_LIST
    0x7D: lambda reader: reader.push({}),  # EMPTY_DICT
    0x29: lambda reader: reader.push(()),  # EMPTY_TUPLE
    0x4D: lambda reader: reader.number(_uint16, 2),  # BININT2
    0x4A: lambda reader: reader.number(_int32, 4),  # BININT
    0x47: lambda reader: reader.number(_double, 8),  # BINFLOAT
    0x8A: _Reader.long,  # LONG1
    0x58: _Reader.text,  # BINUNICODE
    0x8C: _Reader.short_text,  # SHORT_BINUNICODE, of protocol 4
    0x94: _Reader.memoize,  # MEMOIZE, of protocol 4
    0x61: _Reader.append,  # APPEND
    0x65: _Reader.appends,  # APPENDS
    0x73: _Reader.set_item,  # SETITEM
    0x75: _Reader.set_items,  # SETITEMS
    0x85: lambda reader: reader.tuple_of(1),  # TUPLE1
    0x86: lambda reader: reader.tuple_of(2),  # TUPLE2
    0x87: lambda reader: reader.tuple_of(3),  # TUPLE3
    0x74: _Reader.tuple_since_mark,  # TUPLE
}
