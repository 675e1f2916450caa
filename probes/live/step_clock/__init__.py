"""The period of a job's steps and its parts, from the bytes through one NIC."""
