"""Bandwidth tests of others' tools: how they are called, what they print, and what it is worth.

Pure: nothing here starts anything. Every bandwidth is in Gb/s, 10^9 bits a second, whatever the tool prints.
"""
