"""The names of the simulated nodes, the default first; apart, so that asking for them loads nothing else."""

SIMULATED_NAMES = (
    *("hgx-h100", "dgx-a100", "pcie-l40s", "gb200", "cloud-vm", "azure-nd-h100"),
    *("bare-roce", "gcp-a4", "oci-h100"),
    *("hgx-b200", "hgx-b300"),
    *("gb300", "dgx-spark"),
    *("aws-p5", "slingshot"),
    *("vera-rubin", "aws-p6-b300"),
)
