"""What differs between two pictures of a screen, as text: a terminal shows no SVG."""

import html
import re

_RUN = re.compile(
    r'<text class="([^"]+)" x="([\d.]+)" y="[\d.]+" textLength="[\d.]+" clip-path="url\(#[^)]*line-(\d+)\)">'
    r"([^<]*)</text>"
)
_STYLE = re.compile(r"^\s*\.([\w-]+-r\d+) \{([^}]*)\}", re.MULTILINE)
_BACKGROUND = re.compile(r'<rect fill="[^"]+" x="[\d.]+" y="([\d.]+)" width="[\d.]+"')
_CELL_WIDTH = 12.2
_LINE_HEIGHT = 24.4
_MOST_LINES = 6


def screen_lines(svg: str) -> list[str]:
    """Return the text of each line of a screen."""
    return [_text(runs) for runs in _runs(svg)]


def difference(old: str, new: str) -> str:
    """Return the first lines that differ, old and new, or which lines differ in style only."""
    before, after = screen_lines(old), screen_lines(new)
    height = max(len(before), len(after))
    before += [""] * (height - len(before))
    after += [""] * (height - len(after))
    lines = [index for index in range(height) if before[index] != after[index]]
    if not lines:
        return _style_difference(old, new)
    shown = [f"line {index + 1}\n- {before[index]}\n+ {after[index]}" for index in lines[:_MOST_LINES]]
    left_out = len(lines) - len(shown)
    return "\n".join([*shown, *([f"and {left_out} more lines"] if left_out else [])])


def failure(file: str, node_id: str, old: str | None, new: str) -> str:
    """Return the message of a failed test; `old`: None if there is no picture yet."""
    what = (
        f"There is no {file}."
        if old is None
        else f"The screen differs from {file}:\n\n{difference(old, new)}"
    )
    return (
        f"{what}\n\nIf the new screen is right, accept it:\n"
        f".venv/bin/python -m pytest -m '' --snapshot-update '{node_id}'"
    )


def _runs(svg: str) -> list[list[tuple[int, str, str]]]:
    """Return the runs of each line: column, text and style."""
    styles = dict(_STYLE.findall(svg))
    lines: dict[int, list[tuple[int, str, str]]] = {}
    for name, x, line, text in _RUN.findall(svg):
        column = round(float(x) / _CELL_WIDTH)
        lines.setdefault(int(line), []).append(
            (column, html.unescape(text).replace("\xa0", " "), styles.get(name, "").strip())
        )
    return [sorted(lines.get(index, [])) for index in range(max(lines, default=-1) + 1)]


def _text(runs: list[tuple[int, str, str]]) -> str:
    line = ""
    for column, text, _ in runs:
        line = line.ljust(column) + text
    return line.rstrip()


def _style_difference(old: str, new: str) -> str:
    before, after = _styled(old), _styled(new)
    lines = [index for index in sorted({*before, *after}) if before.get(index) != after.get(index)]
    if not lines:
        return "The text is the same; only what is around it differs."
    numbers = ", ".join(str(index + 1) for index in lines)
    changes = zip(before.get(lines[0], []), after.get(lines[0], []), strict=False)
    first = next((f"\n- {was}\n+ {now}" for was, now in changes if was != now), "")
    return f"The text is the same; only colors or styles differ, in line {numbers}.{first}"


def _styled(svg: str) -> dict[int, list[str]]:
    """Return what each line looks like: its runs with their styles, and the backgrounds behind them."""
    lines = {
        index: [f"column {column + 1}, {text.strip()!r}: {style}" for column, text, style in runs]
        for index, runs in enumerate(_runs(svg))
    }
    for match in _BACKGROUND.finditer(svg):
        lines.setdefault(int(float(match[1]) / _LINE_HEIGHT), []).append(match[0])
    return lines
