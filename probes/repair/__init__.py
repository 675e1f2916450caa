"""The way of one node out of service and back: its scheduler, and the steps in order."""
