"""Recordings of nodes that tests replay: made with `gdrtop record`, without anything private."""

from pathlib import Path

# The virtual node with two sockets while nvidia_peermem's refcount goes 0, 3, 7;
# `pytest -m node_vm --keep-recording tests/node_vm/test_recording.py` makes it again.
NODE_VM = Path(__file__).parent / "node-vm.tar.gz"
