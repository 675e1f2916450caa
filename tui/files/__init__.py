"""Files of gdrtop's own."""
