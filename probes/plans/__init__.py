"""Plans for a node: pure functions from an Examination to a Plan; nothing here runs a command."""
