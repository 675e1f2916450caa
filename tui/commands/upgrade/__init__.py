"""What an upgrade of packages would do: `gdrtop setup --before`."""
