"""`gdrtop forecast`: what would be, after a reboot or an upgrade, or with another image."""
