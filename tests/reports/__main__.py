"""`make reports`: how many public reports gdrtop read answers rightly.

Reports that are aside were never tuned to, and are not to be: only their figures are shown.
"""

from __future__ import annotations

import argparse
from collections import Counter

from tests.reports.report import PARTLY, RIGHT, SILENT, WRONG, judge, read, reports


def main() -> None:
    """Print the figures, and what is missing in the answers to those that may be tuned to."""
    parser = argparse.ArgumentParser(prog="python -m tests.reports", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="show these with all of the answer")
    options = parser.parse_args()
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for report in reports():
        if options.names and not any(name in report.name for name in options.names):
            continue
        reading = read(report)
        word, why = judge(report, reading)
        counts[report.aside][word] += 1
        if not report.aside and word != RIGHT:
            print(f"{word:<7} {report.name}: {why}")
        if options.names and not report.aside:
            print(f"\n{report.text}\n{report.source}: {report.cause}\n{reading.proven.text}")
            for statement in reading.statements:
                print(
                    f"- {statement.weight.value} {statement.id}: {statement.title}", *statement.more, sep="; "
                )
                print(f"    {statement.cause}\n    {statement.fix}")
            print(*reading.unread_lines, sep="\n? ")
    for is_aside, name in ((False, "tuned to"), (True, "aside")):
        total = sum(counts[is_aside].values())
        figures = ", ".join(f"{counts[is_aside][word]} {word}" for word in (RIGHT, PARTLY, SILENT, WRONG))
        print(f"{name:<9} {total:>4}: {figures}")


if __name__ == "__main__":
    main()
