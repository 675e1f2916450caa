"""The option that chooses a job on many nodes."""

from __future__ import annotations

import argparse

_MOST_NAME = 128


def add_job_option(parser: argparse.ArgumentParser) -> None:
    """Add --job."""
    parser.add_argument(
        "--job",
        metavar="ID",
        default="",
        type=_job,
        help="the job: 4711, slurm:4711, train.py (default: the NCCL job with the most ranks)",
    )


def _job(text: str) -> str:
    if len(text) > _MOST_NAME:
        raise argparse.ArgumentTypeError(f"the job's name is longer than {_MOST_NAME} characters")
    return text
