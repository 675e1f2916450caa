"""A node that is elsewhere: its questions go over a connection, and nothing is installed there."""
