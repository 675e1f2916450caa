"""The contrast of colors (WCAG 2.2)."""

from textual.color import Color

Rgb = tuple[float, ...]  # linear, from 0 to 1
TEXT, LARGE = 4.5, 3.0  # the ratios of WCAG 2.2, success criteria 1.4.3 and 1.4.11
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def linear(color: Color) -> Rgb:
    """WCAG's definition of relative luminance has the same curve."""
    return tuple(
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized
    )


def times(matrix: tuple[Rgb, ...], color: Rgb) -> Rgb:
    return tuple(sum(factor * part for factor, part in zip(row, color, strict=True)) for row in matrix)


def contrast(one_color: Rgb, other: Rgb) -> float:
    low, high = sorted(times(TO_XYZ, color)[1] for color in (one_color, other))
    return (high + 0.05) / (low + 0.05)
