"""`python -m tui` is `gdrtop`."""

import sys

from tui.launch import main

sys.exit(main())
