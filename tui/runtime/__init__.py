"""What runs behind the screens: sampling, live and replayed sources, signals, the terminal."""
