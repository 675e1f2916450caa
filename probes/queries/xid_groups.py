"""Groups of Xids that mean the same, by NVIDIA's Xid catalog.

https://docs.nvidia.com/deploy/xid-errors/index.html
"""

LOST = (79,)
GSP = (119, 120)
MEMORY = (48, 63, 64, 92, 94, 95, 140, 171, 172)  # ECC errors, remapped rows, retired pages
NVLINK = (74, 144, 145, 146, 147, 148, 149, 150)  # 144 and later on later GPUs
PROGRAM = (13, 31, 43, 45, 68)  # mostly a bug of the program
# 173 to 176 are in the driver's nverror.h (595) only; 162 to 165, power smoothing (GPU-PSHC):
# docs.nvidia.com/deploy/gpu-operational-events.
OTHERS = {
    155: "The driver took an NVLink down, which may have been intended. If jobs failed, reset the GPU.",
    156: "The GPU retires a faulty part at its next reset. Drain the node, then reset the GPU.",
    157: "No spare is left for a faulty part of the GPU. Jobs may run. Contact support if it recurs.",
    158: "The GPU timed out. Drain the node, then reset the GPU. Contact support if it recurs.",
    159: "A protocol error (CHI) on the link of GPU and CPU. Look up the action in NVIDIA's Xid catalog.",
    160: "The GPU retired a faulty channel. No action is needed.",
    161: "The GPU could not retire a faulty channel. No immediate action is needed.",
    162: "The GPU's power smoothing is in effect again. No action is needed.",
    163: "The GPU's power smoothing is no longer in effect. Power may vary more.",
    164: "The GPU's power smoothing has little lifetime left.",
    165: "The GPU's power smoothing has no lifetime left.",
    166: "An NVLink error in confidential computing mode. NVIDIA's Xid catalog lists no action.",
    167: "A PCIe transfer of the GPU timed out. NVIDIA's Xid catalog lists no action. Check its PCIe link.",
    168: "The GPU works with less memory than it has. Jobs that need all of it fail.",
    169: "The GPU's security processor (SEC2) halted. Look up the action in NVIDIA's Xid catalog.",
    170: "An NVLink error in confidential computing mode. NVIDIA's Xid catalog lists no action.",
    173: "The C2C link between GPU and CPU failed. NVIDIA's Xid catalog lists no action.",
    174: "The driver terminated a program on the GPU. NVIDIA's Xid catalog lists no action.",
    175: "An error in the GPU's memory subsystem. NVIDIA's Xid catalog lists no action.",
    176: "Corrected PCIe errors on the GPU. NVIDIA's Xid catalog lists no action. Check its PCIe link.",
}
RECOVERY = 154  # "GPU recovery action changed": the reset or reboot that another Xid requires
