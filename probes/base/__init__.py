"""What every other package uses: unknown values, text, origins, plans as data."""
