"""What no test may depend on is taken away here."""

import os
import signal

# Textual draws other colours where NO_COLOR is set, even empty; the text reports follow the other three.
for _name in ("NO_COLOR", "COLUMNS", "LINES", "PYTHONIOENCODING"):
    os.environ.pop(_name, None)
# A dumb terminal gets ASCII only. TEXTUAL_THEME needs nothing here: the app chooses its theme itself.
os.environ["TERM"] = "xterm-256color"
# Whoever starts the tests in the background of a script has SIGINT ignored, and hands that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
