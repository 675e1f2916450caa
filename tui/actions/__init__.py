"""Actions: which may run, their guards, running them, and the audit log."""
