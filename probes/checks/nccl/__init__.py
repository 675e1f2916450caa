"""Checks of NCCL settings."""
