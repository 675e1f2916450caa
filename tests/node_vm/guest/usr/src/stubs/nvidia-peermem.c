// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#define CLIENT_NAME "nvidia-peermem"
#define CLIENT_VERSION "550.90.07"
#include "peer_memory_client.h"
