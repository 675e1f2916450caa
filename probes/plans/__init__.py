"""What can be done about a node: pure functions from an Examination to a Plan; nothing here runs."""
