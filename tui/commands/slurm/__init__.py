"""Commands that slurmd runs: before a job, after a job, and from time to time."""
