"""What checks and plans both ask of an Examination."""
