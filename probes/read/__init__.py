"""Any text that people show each other: what it is, what it proves about GPUDirect RDMA, and what to do."""
