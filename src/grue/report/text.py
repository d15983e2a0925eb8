"""Text that games, models and files wrote, made safe to show; and numbers as people read them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from math import isfinite

# Bidirectional overrides and zero-width characters can make a page show something other than what is in the
# file; surrogates cannot be encoded at all. Ordinary right-to-left letters stay as they are, and so do the joiners
# that Persian and Indic spelling and some emoji need, after a character other than ASCII.
_HIDDEN = re.compile(
    "(?<![^\x00-\x7f\u200c\u200d])[\u200c\u200d]|"
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e007f]"
)
_SECRET = re.compile(r"\b(?:hf|sk|ghp|gho|github_pat|xox[abp])[_-][A-Za-z0-9_-]{12,}")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_HOME = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\":]+|/root(?=/|\b)")


def visible(text: str) -> str:
    """The same text with every character that would act, not show, replaced by a visible one."""
    return _HIDDEN.sub(_sign, text.replace("\r\n", "\n"))


def escape(value: object) -> str:
    """Text for HTML content and for quoted attributes."""
    return html.escape(visible(str(value)), quote=True)


def one_line(text: str, most: int = 200) -> str:
    """Visible text on one line, for terminals and table cells."""
    line = " ".join(visible(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def redact(text: str) -> str:
    """The text without tokens, passwords in addresses and the path of the user's home folder."""
    return _HOME.sub("~", _CREDENTIALS.sub("…", _SECRET.sub("[token]", text)))


def as_number(value: object) -> float | None:
    """A finite number, or None for anything else (also for True, for NaN and for integers beyond floats)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def percent(share: float | None, decimals: int = 1) -> str:
    return "–" if share is None else f"{100 * share:z.{decimals}f}%"


def short_percent(share: float | None) -> str:
    """For labels and bars: "93%", and "<1%" for a little that is not nothing."""
    return "<1%" if share is not None and 0 < share < 0.005 else percent(share, 0)


def fixed(value: float | None, decimals: int) -> str:
    """With a true minus; "0.0" has none."""
    return "–" if value is None else _minus(f"{value:z.{decimals}f}")


def interval_text(interval: Sequence[float] | None, *, scale: float = 100.0, decimals: int = 1) -> str:
    """Both ends, so joined that a minus sign is clear: "91.2 to 94.4"; empty if the interval has no width."""
    if interval is None or interval[0] == interval[1]:  # if all scores are equal, it bounds nothing
        return ""
    low, high = (_minus(f"{scale * end:z.{decimals}f}") for end in interval)
    return f"{low} to {high}"


def signed(value: float, decimals: int = 1) -> str:
    """With its sign, and a true minus: "+51.3", "−0.2"; "0.0" has none."""
    text = f"{value:+.{decimals}f}"
    return text[1:] if float(text) == 0 else _minus(text)


def number(value: float | None) -> str:
    """Three significant digits, thousands grouped, whole numbers whole."""
    if value is None:
        return "–"
    if not isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return _minus(f"{int(value):,}")
    if abs(value) >= 999.5:
        return _minus(f"{value:,.0f}")
    return _minus(f"{value:.3g}")


def counted(count: float | None, thing: str) -> str:
    """ "1 game", "1,000 games"."""
    return f"{number(count)} {thing}" + ("" if count == 1 else "s")


def duration(seconds: float | None) -> str:
    """ "0.4 s", "48 s", "8 min 32 s", "2 h 05 min"."""
    if seconds is None or not isfinite(seconds) or seconds < 0:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)  # ␀ to ␟
    if code == 0x7F:
        return "␡"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"⟨U+{code:04X}⟩"


def _minus(text: str) -> str:
    return text.replace("-", "−")
