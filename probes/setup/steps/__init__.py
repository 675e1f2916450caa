"""The steps of setup: what comes from checks, drivers, boot and measurements."""
