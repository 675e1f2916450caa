"""How one node is taken out of service and returned: its scheduler, and the steps in order."""
