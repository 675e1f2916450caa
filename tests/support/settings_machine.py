"""Where a test writes configuration: the site's directory and the user's home."""

from pathlib import Path


class Machine:
    """Where a test writes configuration."""

    def __init__(self, root: Path) -> None:
        self.top = root
        self.site = root / "etc" / "gdrtop"
        self.home = root / "home"
        for directory in (self.site, self.home / "gdrtop"):
            directory.mkdir(parents=True)
        self.site_file, self.user_file = self.site / "config.toml", self.home / "gdrtop" / "config.toml"
