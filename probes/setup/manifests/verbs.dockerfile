RUN set -eu; \
    if command -v apt-get >/dev/null 2>&1; then \
        apt-get update; \
        apt-get install --yes --no-install-recommends \
            ibverbs-providers libibverbs1 librdmacm1 ibverbs-utils; \
        rm -rf /var/lib/apt/lists/*; \
    else \
        dnf install --assumeyes libibverbs librdmacm libibverbs-utils; \
        dnf clean all; \
    fi
