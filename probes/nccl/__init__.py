"""NCCL without running it: its variables and topology files, the logs of its jobs, the reports of its RAS."""
