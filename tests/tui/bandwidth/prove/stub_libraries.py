"""Small libcuda and libibverbs with the real functions, which write each call to a log."""

from __future__ import annotations

import subprocess
from pathlib import Path

CUDA = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void note(const char *call) { FILE *log = fopen(LOG, "a"); fprintf(log, "%s\n", call); fclose(log); }
static int called(const char *call)
{ note(call); printf("noise of libcuda\n"); fflush(stdout);
  if (!strcmp(call, HANGS)) for (;;) sleep(1);
  if (!strcmp(call, CRASHES)) abort();
  return !strcmp(call, FAILS) ? CODE : 0; }
int cuInit(unsigned flags)
{ if (getenv("CUDA_VISIBLE_DEVICES") || strcmp(getenv("CUDA_MPS_PIPE_DIRECTORY"), "/dev/null")) return 999;
  return called("cuInit"); }
int cuDeviceGetByPCIBusId(int *device, const char *bdf)
{ *device = 3; note(bdf); return called("cuDeviceGetByPCIBusId"); }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{ *value = attribute == 20 ? MODE : SUPPORTED; return device != 3; }
int cuDevicePrimaryCtxRetain(void **context, int device)
{ *context = (void *) 0x700000000001; return called("cuDevicePrimaryCtxRetain"); }
int cuCtxSetCurrent(void *context)
{ return context == (void *) 0x700000000001 ? called("cuCtxSetCurrent") : 1; }
int cuMemAlloc_v2(unsigned long long *address, size_t size)
{ *address = 0x7f0000200000; return size == 2 << 20 ? called("cuMemAlloc_v2") : 1; }
int cuMemGetHandleForAddressRange(
    int *fd, unsigned long long address, size_t size, int type, unsigned long long flags)
{ if (address != 0x7f0000200000 || size != 2 << 20 || type != 1 || flags) return 1;
  *fd = open("/dev/null", O_RDONLY); return called("cuMemGetHandleForAddressRange"); }
int cuMemFree_v2(unsigned long long address) { return called("cuMemFree_v2"); }
int cuDevicePrimaryCtxRelease_v2(int device) { return called("cuDevicePrimaryCtxRelease_v2"); }
"""
VERBS = r"""
#include <errno.h>
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
static const char *names[] = {"mlx5_0", "mlx5_1", "efa_0"};
static void *list[4] = {&names[0], &names[1], &names[2]};
static void note(const char *call, void *device)
{ FILE *log = fopen(LOG, "a"); fprintf(log, "%s %s\n", *(const char **) device, call); fclose(log); }
static void *made(const char *call, void *device)
{ note(call, device); fprintf(stderr, "noise of libibverbs\n");
  if (strcmp(*(const char **) device, NIC)) return device;
  if (!strcmp(call, HANGS)) for (;;) sleep(1);
  if (strcmp(call, FAILS)) return device;
  errno = CODE; return NULL; }
void **ibv_get_device_list(int *count) { *count = 3; return list; }
void ibv_free_device_list(void **devices) { }
const char *ibv_get_device_name(void *device) { return *(const char **) device; }
void *ibv_open_device(void *device) { return made("open", device); }
void *ibv_alloc_pd(void *device) { return made("pd", device); }
void *ibv_reg_mr(void *device, void *address, size_t size, int access)
{ if (size == 4096 && access == 1) return made("host", device);
  if ((uintptr_t) address != 0x7f0000200000 || size != 2 << 20) { errno = EBADMSG; return NULL; }
  return made(access == 7 ? "peer 7" : access == 1 ? "peer 1" : "peer ?", device); }
#ifndef OLD
void *ibv_reg_dmabuf_mr(void *device, uint64_t offset, size_t size, uint64_t iova, int fd, int access)
{ if (offset || size != 2 << 20 || iova != 0x7f0000200000 || fd < 0) { errno = EBADMSG; return NULL; }
  return made(access == 7 ? "dmabuf 7" : access == 1 ? "dmabuf 1" : "dmabuf ?", device); }
#endif
int ibv_dereg_mr(void *device) { note("dereg", device); return 0; }
int ibv_dealloc_pd(void *device) { note("dealloc", device); return 0; }
int ibv_close_device(void *device) { note("close", device); return 0; }
"""


def built(folder: Path, name: str, source: str, values: dict[str, str], *flags: str) -> str:
    """Compile a library with these values of its macros, and return its path."""
    defined = "".join(f"#define {macro} {value}\n" for macro, value in values.items())
    code, library = folder / f"{name}.c", folder / f"{name}.so"
    code.write_text(defined + source)
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", str(library), str(code)], check=True)
    return str(library)


def libcuda(
    folder: Path,
    *,
    fails: str = "",
    code: int = 0,
    hangs: str = "",
    crashes: str = "",
    mode: int = 0,
    supported: int = 1,
) -> str:
    """Build a libcuda in which one call fails with a code, hangs or crashes."""
    words = {"FAILS": fails, "HANGS": hangs, "CRASHES": crashes, "LOG": f"{folder}/log"}
    values = {"CODE": str(code), "MODE": str(mode), "SUPPORTED": str(supported)}
    return built(folder, "libcuda", CUDA, values | {name: f'"{word}"' for name, word in words.items()})


def libibverbs(
    folder: Path, *flags: str, nic: str = "mlx5_1", fails: str = "", code: int = 0, hangs: str = ""
) -> str:
    """Build a libibverbs in which one call of a NIC fails with an errno, or hangs."""
    words = {"NIC": nic, "FAILS": fails, "HANGS": hangs, "LOG": f"{folder}/log"}
    values = {"CODE": str(code)} | {name: f'"{word}"' for name, word in words.items()}
    return built(folder, "libibverbs", VERBS, values, *flags)
