"""How the dashboard stays small, and the search for garbage cycles cheap."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from tui.runtime.memory import collect_garbage_rarely


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    threshold, was_enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    (gc.enable if was_enabled else gc.disable)()


class Node:
    """An object that can be in a cycle."""

    other: Node


def test_objects_that_exist_are_searched_no_more_but_later_cycles_are_freed() -> None:
    gc.disable()
    collect_garbage_rarely()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000
    first, second = Node(), Node()
    first.other, second.other = second, first
    gone = weakref.ref(first)
    del first, second
    gc.collect()
    assert gone() is None


def test_the_dashboard_leaves_openssl_out_and_others_can_still_import_it() -> None:
    program = """
import sys
from tui.runtime.memory import leave_out_openssl
leave_out_openssl()
import asyncio, hashlib
hashlib.sha256(b"").hexdigest()
assert not {"ssl", "_hashlib"} & set(sys.modules), "it was imported"
import ssl
print(ssl.OPENSSL_VERSION)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.split()[:1]) == ("", ["OpenSSL"])
