"""Opens netlink sockets in other network namespaces, and passes them on.

rdma_namespaces.py runs it, so that gdrtop itself enters no other namespace: a socket stays in the one in
which it was opened. Arguments are the protocol and paths like /proc/PID/ns/net; standard output is a socket
that gets a message for each path, with the errno, and with the netlink socket if that is 0.
"""

import array
import ctypes
import os
import socket
import sys

CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
NETLINK_RDMA = 20


def main(protocol: int, paths: list[str]) -> None:
    """Pass the sockets in the order of the paths."""
    setns = ctypes.CDLL(None, use_errno=True).setns  # Python 3.12 has os.setns
    with socket.socket(fileno=os.dup(1)) as output:
        for path in paths:
            number, sockets = 0, []
            try:
                namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if setns(namespace, CLONE_NEWNET):
                        number = ctypes.get_errno()
                    else:
                        sockets = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)]
                finally:
                    os.close(namespace)
            except OSError as error:
                number = error.errno or 0
            descriptors = array.array("i", [kernel.fileno() for kernel in sockets])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if sockets else []
            output.sendmsg([number.to_bytes(4, sys.byteorder)], rights)
            for kernel in sockets:
                kernel.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
