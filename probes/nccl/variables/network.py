"""The variables that choose NICs, GIDs, queue pairs and the network of NCCL.

Source: NVIDIA/nccl, docs/userguide/source/env.rst (documents 2.0 to 2.32), and
src/transport/net_ib, src/misc/utils.cc.
"""

from __future__ import annotations

from probes.nccl.variables.variable import Kind, Variable, nccl_variable

_OFF, _ON = (("", "0"),), (("", "1"),)
VARIABLES: tuple[Variable, ...] = (
    nccl_variable("NCCL_IB_HCA", "which NICs NCCL uses: prefixes, names after =, or all but those after ^",
                  Kind.HCA_LIST,
                  notes=("Without “=”, each name is a prefix: mlx5_1 also selects mlx5_10 to mlx5_19.",
                         "If unset, NCCL opens every NIC with an ACTIVE port, and each GPU uses the fastest "
                         "and nearest.",
                         "Rail and plane (NAME:PORT:RAIL:PLANE) since 2.30.7. NCCL reads at most 32 "
                         "entries.")),
    nccl_variable("NCCL_IB_DISABLE",
                  "1: NCCL uses TCP sockets instead of its InfiniBand and RoCE transport", Kind.NUMBER,
                  defaults=_OFF, for_debugging=True, notes=("A network plugin may ignore it.",)),
    nccl_variable("NCCL_NET", "the name of the network that NCCL must use", since="2.10",
                  values=(("IB", "InfiniBand or RoCE; NCCL fails instead of using TCP"),
                          ("Socket", "TCP, so no GPUDirect RDMA")),
                  notes=("Case does not matter. Plugins have their own names: “AWS Libfabric”, gIB.",)),
    nccl_variable("NCCL_NET_PLUGIN", "the network plugin that NCCL loads", since="2.11",
                  values=(("none", "no plugin, not even libnccl-net.so"),)),
    nccl_variable("NCCL_TUNER_PLUGIN", "the plugin that chooses algorithms"),
    nccl_variable("NCCL_PROFILER_PLUGIN", "the plugin that records events"),
    nccl_variable("NCCL_IB_GID_INDEX", "the RoCE GID; if unset, NCCL finds it itself", Kind.NUMBER,
                  defaults=(("2.1.4", "0"), ("2.21", "-1")), limits=(-1, 255), since="2.1.4",
                  notes=("From 2.21 on, unset or -1 lets NCCL look for a RoCE v2 GID of NCCL_IB_ADDR_FAMILY. "
                         "Before, the default was index 0, which is usually a RoCE v1 GID, so the index had "
                         "to be set.",
                         "The same index must be right on every NIC of every node: a removed address shifts "
                         "the table.")),
    nccl_variable("NCCL_IB_ADDR_FAMILY", "the address family of the RoCE GID", since="2.21",
                  defaults=(("2.21", "AF_INET"),), is_closed=True,
                  values=(("AF_INET", "IPv4"), ("AF_INET6", "IPv6")),
                  notes=("NCCL uses it only if NCCL_IB_GID_INDEX is unset.",)),
    nccl_variable("NCCL_IB_ADDR_RANGE", "the address range of the RoCE GID", since="2.21",
                  notes=("CIDR, such as 10.0.0.0/16. NCCL uses it only if NCCL_IB_GID_INDEX is unset.",)),
    nccl_variable("NCCL_IB_ROCE_VERSION_NUM", "the RoCE version of the GID", Kind.NUMBER, since="2.21",
                  defaults=(("2.21", "2"),), limits=(1, 2),
                  notes=("NCCL uses it only if NCCL_IB_GID_INDEX is unset. "
                         "Routers do not forward RoCE v1.",)),
    nccl_variable("NCCL_IB_TC", "the traffic class of RoCE packets, for priorities and PFC", Kind.NUMBER,
                  defaults=(("2.1.15", "0"),), limits=(0, 255), since="2.1.15",
                  notes=("The fabric's QoS decides the value: DSCP is its upper six bits (106 is DSCP 26). "
                         "Ask whoever configured the switches.",)),
    nccl_variable("NCCL_IB_FIFO_TC", "the traffic class of NCCL's control messages", Kind.NUMBER,
                  limits=(0, 255), since="2.22.3",
                  notes=("If unset, NCCL uses 0 before 2.24.3, and NCCL_IB_TC since then.",)),
    nccl_variable("NCCL_IB_SL", "the InfiniBand service level", Kind.NUMBER, defaults=_OFF, limits=(0, 15),
                  since="2.1.4"),
    nccl_variable("NCCL_IB_PKEY", "the index of the partition key", Kind.NUMBER, defaults=_OFF,
                  since="2.1.4"),
    nccl_variable("NCCL_IB_PKEY_VALUE", "the partition key, instead of its index", Kind.NUMBER,
                  defaults=(("2.31", "-1"),), limits=(-1, 0xFFFF), since="2.31",
                  notes=("It takes precedence over NCCL_IB_PKEY.",)),
    nccl_variable("NCCL_IB_TIMEOUT", "the ACK timeout of queue pairs, 4.096 µs × 2^value", Kind.NUMBER,
                  defaults=(("", "14"), ("2.14", "18"), ("2.23", "20")), limits=(0, 31),
                  notes=("0, and 32 and above, mean no timeout: a lost peer hangs the job.",)),
    nccl_variable("NCCL_IB_RETRY_CNT", "how many times a queue pair retries before status 12", Kind.NUMBER,
                  defaults=(("2.1.15", "7"),), limits=(0, 7), since="2.1.15"),
    nccl_variable("NCCL_IB_QPS_PER_CONNECTION", "queue pairs per connection", Kind.NUMBER,
                  defaults=(("2.10", "1"),), limits=(1, 128), since="2.10", for_debugging=True,
                  notes=("More queue pairs can spread traffic over a fabric with ECMP. Measure it.",)),
    nccl_variable("NCCL_IB_SPLIT_DATA_ON_QPS",
                  "1: each message is split over the queue pairs of a connection; 0: they take turns",
                  Kind.NUMBER, defaults=(("2.18", "1"), ("2.20", "0")), limits=(0, 1), since="2.18",
                  for_debugging=True, notes=("The default changed from 1 to 0 in 2.20.",)),
    nccl_variable("NCCL_IB_ADAPTIVE_ROUTING", "1: data transfers that allow adaptive routing", Kind.NUMBER,
                  limits=(0, 1), since="2.16", for_debugging=True,
                  notes=("The default is 1 on InfiniBand and 0 on RoCE. The service level must allow it.",)),
    nccl_variable("NCCL_IB_AR_THRESHOLD",
                  "the message size above which data may use adaptive routing, in bytes", Kind.NUMBER,
                  defaults=(("2.6", "8192"),), since="2.6", for_debugging=True,
                  notes=("From 2.30.3 on, NCCL ignores it if NCCL_IB_OOO_RQ=1.",)),
    nccl_variable("NCCL_IB_PCI_RELAXED_ORDERING",
                  "0: no relaxed ordering, which is slow in virtual machines; 1: always", Kind.NUMBER,
                  defaults=(("2.12", "2"),), limits=(0, 2),
                  values=(("0", "disabled"),
                          ("1", "required: NCCL fails if the NIC does not support it"),
                          ("2", "used if available")), since="2.12", for_debugging=True),
    nccl_variable("NCCL_IB_ECE_ENABLE", "0: no enhanced connection establishment", Kind.NUMBER,
                  defaults=(("2.23.4", "1"),), limits=(0, 1), since="2.23.4", for_debugging=True),
    nccl_variable("NCCL_IB_MERGE_NICS", "0: the ports of a NIC are used separately", Kind.NUMBER,
                  defaults=(("2.20", "1"),), limits=(0, 1), since="2.20", for_debugging=True),
    nccl_variable("NCCL_IB_MERGE_VFS", "0: virtual functions of a NIC are separate NICs", Kind.NUMBER,
                  defaults=_ON, limits=(0, 1), anchor="debugging"),
    nccl_variable("NCCL_IB_DATA_DIRECT", "0: the Data Direct interface of ConnectX-8 is not used",
                  Kind.NUMBER, defaults=_ON, since="2.27", anchor="debugging"),
    nccl_variable("NCCL_IB_RAIL_POLICY", "how NCCL assigns rails to ConnectX-9", since="2.32",
                  is_closed=True, ignores_case=True, defaults=(("2.32", "CX9:FLIP"),),
                  values=(("CX9:FLIP", "mirrored on each socket"), ("CX9", "the same as CX9:FLIP"),
                          ("CX9:ALT", "alternating on each socket"),
                          ("CX9:BLOCK", "in blocks on each socket"), ("NONE", "NCCL assigns no rails")),
                  notes=("It applies to arm64 nodes with a multiple of 8 ConnectX-9. NCCL knows them by "
                         "their firmware, 82.x.",)),
    nccl_variable("NCCL_IB_RETURN_ASYNC_EVENTS", "0: a fatal event of a NIC does not stop the job",
                  Kind.NUMBER, defaults=(("2.23", "1"),), limits=(0, 1), since="2.23"),
)  # fmt: skip
