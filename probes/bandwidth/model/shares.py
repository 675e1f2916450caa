"""Which share of its limit a healthy path reaches.

Of a port 90 % or more: azurehpc-health-checks accepts 180 of 200 Gb/s (ND A100 v4) and 380 of 400 Gb/s (ND
H100 v5) from ib_write_bw for a healthy GPU–NIC pair. Of a PCIe link 82 % or more: 90 % of what
acknowledgements and flow control leave, which take 8 to 10 % of the link (Neugebauer et al., SIGCOMM 2018)
and are not in the limit.
"""

from __future__ import annotations

NEAR_PORT = 0.90
NEAR_PCIE = 0.82
