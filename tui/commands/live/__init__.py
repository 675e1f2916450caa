"""`gdrtop live`: what runs now, as text, JSON, a CSV file or a trace."""
