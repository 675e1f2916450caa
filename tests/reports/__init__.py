"""Public reports with the cause that was found, put to gdrtop read."""
