"""The variables of NCCL for bootstrap, algorithms, buffers, logs and files.

Source: NVIDIA/nccl, docs/userguide/source/env.rst (documents 2.0 to 2.32), and
src/misc/socket.cc, src/misc/param.cc.
"""

from __future__ import annotations

from probes.nccl.variables.variable import Kind, Variable, nccl_variable

_DIAGNOSTICS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html"
_TUNING = "NCCL chooses it by topology and message size. A fixed value is often wrong after an update."
_UNKNOWN_WORDS = "From 2.24 on, NCCL fails on an unknown word; earlier versions ignore it."
_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT", "CollNet")
_SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY"),
    *("NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"),
)
# The user guide has it (troubleshooting/diagnostics, in RCCL's copy), and debug.cc of 2.31.2 does not.
_DIAG = ("DIAG", "details of NCCL's diagnostics; not in 2.31.2")
VARIABLES: tuple[Variable, ...] = (
    nccl_variable("NCCL_SOCKET_IFNAME", "the interfaces for bootstrap and TCP sockets", Kind.INTERFACES,
                  notes=("If unset, NCCL prefers interfaces whose names begin with ib, then others except "
                         "docker and lo.",
                         "Without “=”, each name is a prefix: eth also selects eth0 and eth1.",
                         "It does not choose the NICs for RDMA; NCCL_IB_HCA does.")),
    nccl_variable("NCCL_SOCKET_FAMILY", "the address family for bootstrap and TCP sockets", is_closed=True,
                  values=(("AF_INET", "IPv4"), ("AF_INET6", "IPv6"))),
    nccl_variable("NCCL_SOCKET_NTHREADS", "threads per TCP connection", Kind.NUMBER, limits=(1, 16),
                  since="2.4.8"),
    nccl_variable("NCCL_NSOCKS_PERTHREAD", "TCP sockets per thread", Kind.NUMBER, since="2.4.8"),
    nccl_variable("NCCL_OOB_NET_ENABLE", "1: bootstrap over RDMA", Kind.NUMBER, limits=(0, 1), since="2.23"),
    nccl_variable("NCCL_OOB_NET_IFNAME", "the NIC for bootstrap over RDMA", Kind.HCA_LIST, since="2.23"),
    nccl_variable("NCCL_COMM_ID", "the address of the first rank", anchor="debugging"),
    nccl_variable("NCCL_HOSTID", "used instead of the host name to tell nodes apart", anchor="debugging"),
    nccl_variable("NCCL_ALGO", "the algorithms that NCCL may use", Kind.WORDS, since="2.5",
                  for_debugging=True, is_closed=True, ignores_case=True,
                  values=tuple((word, "") for word in _ALGORITHMS),
                  notes=(_TUNING, _UNKNOWN_WORDS)),
    nccl_variable("NCCL_PROTO", "the protocols that NCCL may use", Kind.WORDS, since="2.5",
                  for_debugging=True, is_closed=True, ignores_case=True,
                  values=(("LL", ""), ("LL128", ""), ("Simple", "")),
                  notes=(_TUNING,
                         _UNKNOWN_WORDS,
                         "LL128 on a platform that does not support it can corrupt data.")),
    nccl_variable("NCCL_MIN_NCHANNELS", "the smallest number of channels", Kind.NUMBER, for_debugging=True,
                  instead="NCCL_MIN_CTAS", notes=("Replaced by NCCL_MIN_CTAS in 2.17; it still works.",)),
    nccl_variable("NCCL_MAX_NCHANNELS", "the largest number of channels", Kind.NUMBER, for_debugging=True,
                  instead="NCCL_MAX_CTAS", notes=("Replaced by NCCL_MAX_CTAS in 2.17; it still works.",)),
    nccl_variable("NCCL_MIN_CTAS", "the smallest number of CUDA blocks", Kind.NUMBER, since="2.17",
                  for_debugging=True),
    nccl_variable("NCCL_MAX_CTAS", "the largest number of CUDA blocks", Kind.NUMBER, since="2.17",
                  for_debugging=True),
    nccl_variable("NCCL_BUFFSIZE", "the size of the buffers between GPUs, in bytes", Kind.NUMBER,
                  defaults=(("", "4194304"),), for_debugging=True),
    nccl_variable("NCCL_NTHREADS", "CUDA threads per block", Kind.NUMBER, limits=(64, 512),
                  for_debugging=True),
    nccl_variable("NCCL_P2P_NET_CHUNKSIZE",
                  "the message size of send and receive over the network, in bytes", Kind.NUMBER,
                  defaults=(("2.14", "131072"),), since="2.14", for_debugging=True),
    nccl_variable("NCCL_NET_SHARED_BUFFERS", "0: every connection has its own buffers", Kind.NUMBER,
                  defaults=(("2.8", "1"),), limits=(0, 1), since="2.8", for_debugging=True),
    nccl_variable("NCCL_RUNTIME_CONNECT",
                  "0: connect when a communicator is created, not at the first collective", Kind.NUMBER,
                  defaults=(("2.22", "1"),), limits=(0, 1), since="2.22", for_debugging=True),
    nccl_variable("NCCL_LAUNCH_MODE", "how kernels are launched", since="2.1", for_debugging=True),
    nccl_variable("NCCL_LL_THRESHOLD", "the size below which LL is used", Kind.NUMBER, removed="2.5"),
    nccl_variable("NCCL_TREE_THRESHOLD", "the size below which trees are used", Kind.NUMBER, removed="2.5"),
    nccl_variable("NCCL_SINGLE_RING_THRESHOLD", "the size below which one ring is used", Kind.NUMBER,
                  removed="2.3"),
    nccl_variable("NCCL_DEBUG", "what NCCL writes to its log", is_closed=True, ignores_case=True,
                  values=(("VERSION", "the version only"),
                          ("WARN", "errors"),
                          ("ATTN", "errors and notices; from 2.32 on"),
                          ("INFO", "what gdrtop nccl-log needs"),
                          ("ABORT", ""),
                          ("TRACE", "every call, and only in a special build"))),
    nccl_variable("NCCL_DEBUG_SUBSYS", "which parts of NCCL write to the log", Kind.WORDS, since="2.3.4",
                  is_closed=True, ignores_case=True, values=(*((word, "") for word in _SUBSYSTEMS), _DIAG)),
    nccl_variable("NCCL_DEBUG_FILE", "the log file; %h is the host, %p the pid", Kind.PATH, since="2.2.12"),
    nccl_variable("NCCL_CONF_FILE", "the configuration file to use instead of ~/.nccl.conf", Kind.PATH,
                  since="2.23", notes=("Before 2.23, NCCL reads only ~/.nccl.conf and /etc/nccl.conf.",)),
    nccl_variable("NCCL_RAS_ENABLE", "0: no RAS service", Kind.NUMBER, defaults=(("2.24", "1"),),
                  since="2.24"),
    nccl_variable("NCCL_RAS_ADDR", "the address of the RAS service", since="2.24"),
    Variable("NCCL_RUN_DIAGNOSTICS", "1: NCCL tests its paths whenever a communicator is created",
             Kind.NUMBER, defaults=(("2.31", "0"),), limits=(0, 1), since="2.31", reference=_DIAGNOSTICS,
             notes=("2.31 tests P2P between GPUs. From 2.32.3 on, it also runs ib_write_bw between "
                    "neighboring nodes, from GPU memory if their perftest can.",
                    "Results are on the job's standard output; gdrtop nccl-log explains them. They never end "
                    "the job. Unset it afterwards, because every communicator waits for it.")),
    Variable("NCCL_RUN_RAS_DIAGNOSTICS", "1: NCCL compares its processes whenever a communicator is created",
             Kind.NUMBER, defaults=(("2.31", "0"),), limits=(0, 1), since="2.31", reference=_DIAGNOSTICS,
             notes=("It compares GPUs, drivers and settings, and tests no path. From 2.32 on, every process "
                    "runs lspci and rdma_topo.",)),
)  # fmt: skip
