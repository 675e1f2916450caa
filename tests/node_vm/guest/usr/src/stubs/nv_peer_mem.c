// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#define CLIENT_NAME "nv_peer_mem"
#define CLIENT_VERSION "1.3"
#include "peer_memory_client.h"
