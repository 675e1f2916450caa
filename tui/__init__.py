"""The program: command line, application, screens, actions."""
