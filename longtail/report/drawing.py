"""Plots as SVG: lines and bars, with axes, nothing else. Colours are the page's, so that they fit light and dark."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 44  # margins
TICKS = 5
BAR, GAP = 13, 14  # height of a bar, and space between two groups
COLOURS = 6  # that the page has

Points = Sequence[tuple[float, float]]


def lines(series: Mapping[str, Points], *, x: str, y: str, even: bool = False, square: bool = False) -> str:
    """Each named series of points as a line, with a legend; empty where no series has a point.

    x, y    what the axes show
    even    also a dotted line on which both are the same
    square  both axes from 0 to 100
    """
    points = [point for some in series.values() for point in some]
    if not points:
        return ""
    xs, ys = (ticks(0, 100) if square else ticks(min(side), max(side)) for side in zip(*points))
    across = _scale(xs, LEFT, WIDTH - RIGHT)
    up = _scale(ys, HEIGHT - BOTTOM, TOP)
    parts = [_axes(xs, ys, across, up, x, y)]
    low, high = max(xs[0], ys[0]), min(xs[-1], ys[-1])
    if even and low < high:
        ends = f'x1="{across(low):.1f}" y1="{up(low):.1f}" x2="{across(high):.1f}" y2="{up(high):.1f}"'
        parts.append(f'<line class="even" {ends}/>')
    for place, (name, some) in enumerate(series.items()):
        path = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in some)
        parts.append(f'<polyline class="line c{place % COLOURS}" points="{path}"/>')
        if len(some) <= 40:
            parts += [
                f'<circle class="dot c{place % COLOURS}" cx="{across(a):.1f}" cy="{up(b):.1f}" r="2.6">'
                f"<title>{escape(name)}: {number(a)}, {number(b)}</title></circle>"
                for a, b in some
            ]
    return _figure(parts, WIDTH, HEIGHT, f"{y} by {x}", series)


def bars(groups: Mapping[str, Mapping[str, float]], *, x: str) -> str:
    """A group of horizontal bars per name, a bar per series, the value at its end."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    values = [value for group in groups.values() for value in group.values()]
    if not values:
        return ""
    xs = ticks(0, max(values))
    left = 196
    height = TOP + sum(BAR * len(group) + GAP for group in groups.values()) + BOTTOM - 10
    across = _scale(xs, left, WIDTH - 44)
    parts = [
        f'<line class="grid" x1="{across(at):.1f}" y1="{TOP}" x2="{across(at):.1f}" y2="{height - BOTTOM + 6}"/>'
        f'<text x="{across(at):.1f}" y="{height - BOTTOM + 22}" text-anchor="middle">{number(at)}</text>'
        for at in xs
    ]
    top = TOP + GAP / 2
    for title, group in groups.items():
        middle = top + BAR * len(group) / 2 + 4
        parts.append(f'<text x="{left - 8}" y="{middle:.1f}" text-anchor="end">{escape(title)}</text>')
        for name, value in group.items():
            shown = f'<rect class="bar c{names.index(name) % COLOURS}" x="{left}" y="{top:.1f}"'
            parts.append(f'{shown} width="{max(0.5, across(value) - left):.1f}" height="{BAR - 2}"/>')
            parts.append(f'<text class="value" x="{across(value) + 4:.1f}" y="{top + BAR - 3:.1f}">{value:.1f}</text>')
            top += BAR
        top += GAP
    parts.append(_caption((left + WIDTH - 44) / 2, height - 4, x))
    return _figure(parts, WIDTH, height, x, names)


def ticks(low: float, high: float) -> list[float]:
    """Round values from at most `low` to at least `high`, about TICKS of them."""
    if high - low < 1e-6 * max(1.0, abs(low), abs(high)):  # all the same
        low, high = low - 0.5, low + 0.5
    rough = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * place, 10) for place in range(first, last + 1)]


def number(value: float) -> str:
    """As short as it can be read."""
    return f"{value:.4g}"


def _scale(marks: Sequence[float], first: float, last: float) -> Callable[[float], float]:
    """What turns a value into a place between `first` and `last`."""
    low, span = marks[0], marks[-1] - marks[0]
    return lambda value: first + (value - low) / span * (last - first)


def _axes(xs: Sequence[float], ys: Sequence[float], across, up, x: str, y: str) -> str:
    parts = [
        f'<line class="grid" x1="{LEFT}" y1="{up(at):.1f}" x2="{WIDTH - RIGHT}" y2="{up(at):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{up(at) + 4:.1f}" text-anchor="end">{number(at)}</text>'
        for at in ys
    ]
    parts += [
        f'<text x="{across(at):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(at)}</text>' for at in xs
    ]
    parts.append(_caption((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'<text class="axis" x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">'
    return "".join([*parts, f"{turned}{escape(y)}</text>"])


def _caption(x: float, y: float, text: str) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'


def _figure(parts: Sequence[str], width: float, height: float, title: str, names: Iterable[str]) -> str:
    """The drawing with its legend."""
    keys = "".join(
        f'<span class="key"><i class="c{place % COLOURS}"></i>{escape(name)}</span>' for place, name in enumerate(names)
    )
    drawing = f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    return f'<figure>{drawing}<figcaption class="keys">{keys}</figcaption></figure>'
