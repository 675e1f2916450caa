"""`python -m tests.machines`: write the page of the manual about real machines, where their data is here."""

from __future__ import annotations

import sys

from tests.machines.page import PATH, text
from tests.machines.table import COMPARISONS


def main() -> int:
    """Compare all, and write the page; where data is missing, leave the page as it is."""
    results = {comparison: comparison.run() for comparison in COMPARISONS}
    missing = [comparison for comparison, result in results.items() if result is None]
    if missing:
        print(
            f"{len(missing)} of {len(results)} machines are not here: the page stays as it is",
            file=sys.stderr,
        )
        return 0
    PATH.write_text(text({each: result for each, result in results.items() if result}), encoding="utf-8")
    differing = [each.machine for each, result in results.items() if result and result.differences]
    print(f"{len(results)} comparisons, {len(differing)} with differences: {', '.join(differing) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
