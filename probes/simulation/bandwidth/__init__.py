"""Bandwidth tools on a simulated node: transcripts with measured speeds, in their time, and their failures.

What a test measures follows from probes/bandwidth/model/limits.py on that very node, with its faults. The
tools understand the options that gdrtop passes (probes/bandwidth/tools), and print what those parsers and
screens need, in the form of perftest 6.23, gdrcopy 2.5, nvbandwidth 0.8 and nccl-tests 2.17.
"""
