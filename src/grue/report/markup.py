"""HTML that is safe by default: `tag` escapes every child that is not already Html."""

from __future__ import annotations

from collections.abc import Iterable

from grue.report.text import escape

_VOID = frozenset({"meta", "br", "hr", "wbr", "line", "circle", "rect", "path", "polyline"})


class Html(str):
    """Markup that was built by `tag` or written in this package. Never wrap text from a file in it."""

    __slots__ = ()


Child = str | int | Html | None


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element. Children that are plain strings are escaped; None is left out.

    Attribute names: `class_` is class, other underscores are hyphens. True gives a bare attribute, False and None give
    none.
    """
    head = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{head}>") if name in ("meta", "br", "hr", "wbr") else Html(f"<{head}/>")
    return Html(f"<{head}>{join(children)}</{name}>")


def wide(child: Child, label: str) -> Html:
    """A box that scrolls sideways on a narrow screen, by keyboard too; `label` says what it holds."""
    return tag("div", child, class_="wide", role="region", aria_label=label, tabindex="0")


def join(children: Iterable[Child], separator: str = "") -> Html:
    """Children one after the other, the plain ones escaped. The separator is markup."""
    return Html(
        separator.join(child if isinstance(child, Html) else escape(child) for child in children if child is not None)
    )


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
