"""Simulated nodes: made up, described in nodes/*.toml, and marked SIMULATED wherever they are shown."""
