"""One page about a node for a ticket or a hand-over: Markdown and HTML; no I/O."""
