"""Reads a GPU node and judges what it read; changes nothing."""
