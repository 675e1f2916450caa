"""NCCL settings and topology files."""
