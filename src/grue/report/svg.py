"""Small inline graphics, and matplotlib's SVG made fit for a page: unique ids, colours that follow the theme."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from grue.report.markup import Html, join, tag

# Okabe and Ito's colours, which most colour-blind readers can tell apart; the page's style may lighten them when dark.
OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
INK, MUTED, RULE = "#1f2328", "#6a6f76", "#dedbd4"

_VARIABLES = {colour: f"var(--c{index})" for index, colour in enumerate(OKABE_ITO)} | {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
}
_KEPT = frozenset({"svg", "g", "defs", "path", "use", "text", "clipPath", "rect"})
_ATTRIBUTES = frozenset({"d", "x", "y", "width", "height", "transform", "style", "id", "href", "clip-path"})
_FONT_FAMILY = re.compile(r"\s*font-family:[^;]*;?")


def clean_svg(source: str, key: str, label: str) -> Html:
    """The SVG that matplotlib wrote, cut down to shapes and text. `key` makes its ids unique on the page."""
    root = ElementTree.fromstring(source)  # noqa: S314 our own output, parsed to be re-written
    box = root.get("viewBox", "0 0 100 100")
    inner = join(_rewrite(child, key) for child in root)
    return tag("svg", tag("title", label), inner, viewBox=box, role="img", aria_label=label)


def _rewrite(element: ElementTree.Element, key: str) -> Html | None:
    name = element.tag.rpartition("}")[2]
    if name not in _KEPT:
        return None
    attributes: dict[str, str] = {}
    for full, value in element.attrib.items():
        attribute = full.rpartition("}")[2]
        if attribute == "style":
            value = _themed(_FONT_FAMILY.sub("", value))
        elif attribute == "id":
            # ids that nothing refers to ("line2d_1") would repeat in every figure
            if not re.fullmatch(r"[mp][0-9a-f]{10}|data-.*|band-.*|raw-.*|ring", value):
                continue
            value = f"{key}-{value}"
        elif attribute == "href":
            value = f"#{key}-{value.removeprefix('#')}"
        elif attribute == "clip-path":
            value = value.replace("url(#", f"url(#{key}-")
        elif attribute == "transform" and value.startswith("rotate(-0"):
            continue
        if attribute in _ATTRIBUTES:
            attributes[attribute.replace("-", "_")] = " ".join(value.split())
    text = (element.text or "").strip()
    return _element(name, join([text, *(_rewrite(child, key) for child in element)]), attributes)


def _element(name: str, inner: Html, attributes: dict[str, str]) -> Html | None:
    if name == "style" or (name in ("g", "defs") and not inner):
        return None
    if name == "g" and not attributes:
        return inner  # a group without a purpose
    return tag(name, inner, **attributes)


def _themed(style: str) -> str:
    for colour, variable in _VARIABLES.items():
        style = style.replace(colour, variable)
    return style


def interval_mark(
    value: float,
    interval: tuple[float, float] | None,
    *,
    scale: tuple[float, float] = (0.0, 1.0),
    width: int = 100,
) -> Html:
    """A dot with its interval on a thin track, `width` units long; a tick marks 0 where the scale crosses it.

    Not for screen readers: the numbers stand beside it.
    """
    low_end, high_end = scale
    place = lambda number: 3 + (width - 6) * (min(max(number, low_end), high_end) - low_end) / (high_end - low_end)  # noqa: E731
    shapes: list[Html | None] = [_line(3, width - 3, "track")]
    if low_end < 0 < high_end:
        shapes.append(tag("line", x1=_n(place(0)), x2=_n(place(0)), y1="2", y2="12", class_="track"))
    if interval is not None:
        shapes.append(_line(place(interval[0]), place(interval[1]), "whisker"))
    shapes.append(tag("circle", cx=_n(place(value)), cy="7", r="3", class_="dot"))
    return tag("svg", *shapes, viewBox=f"0 0 {width} 14", class_="mark", aria_hidden="true")


def trace(values: Sequence[float | None], rewards: Sequence[float], label: str) -> Html | None:
    """The critic's value over the turns as a line, and a bar at every turn with a reward; None without values."""
    known = [(turn, value) for turn, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return None
    ends = [0.0, 1.0, *(value for _, value in known), *rewards]
    low, high = min(ends), max(ends)
    across = lambda turn: 4 + 592 * turn / max(len(values) - 1, 1)  # noqa: E731
    up = lambda value: 66 - 60 * (value - low) / (high - low)  # noqa: E731
    shapes = [tag("line", x1="0", x2="600", y1=_n(up(level)), y2=_n(up(level)), class_="track") for level in (0.0, 1.0)]
    for turn, reward in enumerate(rewards):
        if reward:
            x = _n(across(turn))
            kind = "gain" if reward > 0 else "loss"
            shapes.append(tag("line", x1=x, x2=x, y1=_n(up(0)), y2=_n(up(reward)), class_=kind))
    points = " ".join(f"{_n(across(turn))},{_n(up(value))}" for turn, value in known)
    shapes.append(tag("polyline", points=points, class_="value"))
    shapes += [tag("circle", cx=_n(across(turn)), cy=_n(up(value)), r="2.2", class_="dot") for turn, value in known]
    return tag("svg", *shapes, viewBox="0 0 600 72", class_="trace", role="img", aria_label=label)


def key_line(index: int) -> Html:
    """The sample of a line in a legend, dashed like the line itself."""
    dashes = (None, "5 3", "1.5 2.5", "7 2 1.5 2")[index % 4]
    colour = f"stroke:var(--c{index % len(OKABE_ITO)})"
    line = tag("line", x1="1", x2="25", y1="5", y2="5", stroke_dasharray=dashes, style=colour)
    return tag("svg", line, viewBox="0 0 26 10", class_="key", aria_hidden="true")


def _line(x1: float, x2: float, class_: str) -> Html:
    return tag("line", x1=_n(x1), x2=_n(x2), y1="7", y2="7", class_=class_)


def _n(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
