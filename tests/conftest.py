"""What no test may depend on is taken away here."""

import os

# Textual draws other colours where NO_COLOR is set, even empty.
os.environ.pop("NO_COLOR", None)
