"""A TCP connection of this machine that has carried some bytes."""

import socket
import threading


def connected(size: int) -> tuple[socket.socket, socket.socket]:
    """Return both ends, the sender first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    sender = threading.Thread(target=ours.sendall, args=(bytes(size),))
    sender.start()
    left = size
    while left:
        left -= len(theirs.recv(left))
    sender.join()
    return ours, theirs
