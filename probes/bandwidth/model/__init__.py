"""Bandwidth tests as data: request, planned test, limits, result, rating."""
