"""This machine, for the local host only: its files, commands, sockets and libraries."""
