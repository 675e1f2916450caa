"""The settings of a bandwidth test."""
