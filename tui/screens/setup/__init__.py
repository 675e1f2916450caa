"""Guided setup: the steps and the selected one."""
