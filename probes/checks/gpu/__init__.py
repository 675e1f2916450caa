"""Checks of GPUs, their driver and NVLink."""
