"""One page about a node for a ticket or a handover: Markdown and HTML; no I/O."""
