"""Objects that the app composes: actions, bandwidth tests, the command palette."""
