"""The subcommands that need no dashboard."""
