"""Commands that give other programs what gdrtop knows."""
