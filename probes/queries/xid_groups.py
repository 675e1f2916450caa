"""Groups of Xids that mean the same, by NVIDIA's Xid catalog.

https://docs.nvidia.com/deploy/xid-errors/index.html
"""

LOST = (79,)
GSP = (119, 120)
MEMORY = (48, 63, 64, 92, 94, 95, 140)  # ECC errors, remapped rows, retired pages
NVLINK = (74, 144, 145, 146, 147, 148, 149, 150)  # 144 and later on later GPUs
PROGRAM = (13, 31, 43, 45, 68)  # mostly a bug of the program
RECOVERY = 154  # "GPU recovery action changed": the reset or reboot that another Xid requires
