"""The trees of hwloc's tests."""

TREES = [
    "2pa-pcidomain32bits",
    "32amd64-4s2n4c-cgroup2",
    "32em64t-2n8c+dax+nvme+mic+dimms",
    "48amd64-4pa2n6c-sparse",
    "fakepcilocalities",
    "nvidiagpunumanodes",
    "offline-cpu0-node0",
]
# The smallest, and the one with GPUs: to unpack the others takes seconds.
USUAL_TREES = {"2pa-pcidomain32bits", "nvidiagpunumanodes", "offline-cpu0-node0"}
