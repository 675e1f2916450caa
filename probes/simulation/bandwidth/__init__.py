"""Bandwidth tests of others' tools, played on a simulated node: their output, in their time, their failures.

What is measured follows from probes/bandwidth/model/limits.py on that very node, with its faults. The
texts have the form that perftest, gdrcopy, nvbandwidth and nccl-tests print.
"""
