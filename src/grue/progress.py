"""What a run says while it works: bars with ETA on a terminal, a plain line now and then elsewhere.

Text from games and models is only ever displayed: control sequences are removed and nothing is treated as markup.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, Task

_BAR_FROM = 60  # columns of a terminal: narrower ones have no room for a bar beside its numbers
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands: titles, links, clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # other strings for the terminal
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor, screen
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # all but tab and newline
    r"|[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"  # invisible, or changing the direction of text
)


def clean(text: str) -> str:
    """`text` without anything that a terminal would obey."""
    return _CONTROL.sub("", text)


def duration(seconds: float) -> str:
    """ "45s", "3m05s", "2h10m"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress:
    """Where a run says what it does: `say("text")`, `say.table(...)`, `with say.bar("PPO", 60) as bar: bar.advance()`.

    `quiet` leaves warnings only, `silent` nothing: another process of the run says the same. `stderr` keeps stdout
    free, for a program that reads it. If nobody reads the output any more (a closed pipe), work inside a bar goes on
    silently, so that it can still be saved.
    """

    def __init__(
        self, *, quiet: bool = False, silent: bool = False, stderr: bool = False, every_s: float = 5.0
    ) -> None:
        self.quiet = quiet or silent
        self.silent = silent
        self.every_s = every_s  # seconds between two plain lines of one bar
        self._stderr = stderr
        self._console: Console | None = None
        self._live: RichProgress | None = None
        self._working = 0  # bars that are open
        self._unread = False

    @property
    def stream(self) -> TextIO:
        return sys.stderr if self._stderr else sys.stdout

    @property
    def is_terminal(self) -> bool:
        stream: TextIO | None = self.stream  # None where it was closed
        return stream is not None and stream.isatty()

    @property
    def moves(self) -> bool:
        """Can a bar be drawn over and over? Not on a terminal that knows no cursor (TERM=dumb)."""
        return self.is_terminal and not self.console.is_dumb_terminal

    def __call__(self, text: str = "", *, style: str = "", wrap: bool = False) -> None:
        """One message. `style` is a style of rich ("bold", "dim", "red"); a file or pipe gets plain text.

        With `wrap` a terminal shows long lines broken between words; others stay whole, to be copied.
        """
        if not self.quiet:
            self._print(text, style, wrap=wrap)

    def warn(self, text: str) -> None:
        """A message that is shown even if quiet."""
        if not self.silent:
            self._print(f"warning: {text}", "yellow")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "", left: int = 1) -> None:
        """Rows under column names, aligned: the first columns to the left, those after `left` of them to the right."""
        cells = [[clean(str(cell)).replace("\n", " ") for cell in row] for row in rows]
        widths = [max(_width(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
        if title:
            self(title, style="bold")
        self(_aligned(columns, widths, left), style="bold")
        for line in cells:
            self(_aligned(line, widths, left))

    @contextmanager
    def bar(self, label: str, total: int, *, done: int = 0, unit: str = "") -> Iterator[Bar]:
        """Count to `total` from `done` (what an earlier command did: it does not count for the ETA).

        Where there is nothing to count, nothing is shown.
        """
        bar = Bar(self, clean(label), total, done, unit)
        bar.start()
        try:
            yield bar
        finally:
            bar.stop()

    def _print(self, text: str, style: str = "", *, wrap: bool = False) -> None:
        with self._outliving():
            if self.is_terminal:
                from rich.text import Text

                self.console.print(Text(clean(text), style=style), soft_wrap=not wrap)
            else:
                print(clean(text), file=self.stream, flush=True)

    @contextmanager
    def _outliving(self) -> Iterator[None]:
        """Inside, failing to write output does not stop work that a bar counts."""
        try:
            yield
        except OSError as error:
            if not self._working:
                raise
            if not self._unread:
                self._unread = True
                with suppress(OSError):
                    print(f"warning: no more output ({error.strerror}); the work goes on", file=sys.stderr)
            self._live = None
            with suppress(OSError):  # otherwise flushing the buffers at exit would fail again
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    @property
    def console(self) -> Console:
        """The terminal, as rich sees it. A bar and the messages above it must go through the same one."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=self._stderr)
        return self._console

    def _open_live(self) -> RichProgress:
        if self._live is None:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as RichProgress
            from rich.table import Column

            width = self.console.width
            columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
            if width >= _BAR_FROM:
                columns.append(BarColumn(24 if width >= 2 * _BAR_FROM else 10, table_column=Column(no_wrap=True)))
            columns += [
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[times]}", markup=False),
                _note_column(),
            ]
            self._live = RichProgress(*columns, console=self.console, transient=True)
            self._live.start()
        return self._live

    def _close_live(self) -> None:
        if self._live is not None and not self._live.tasks:
            self._live.stop()
            self._live = None


class Bar:
    """Progress of one piece of work. Made by `Progress.bar`."""

    def __init__(self, say: Progress, label: str, total: int, done: int, unit: str) -> None:
        self.done = done
        self.total = total
        self._say, self._label, self._unit = say, label, unit
        self._began = self._shown = time.monotonic()
        self._pace: tuple[float, int] | None = (self._began, done)  # since when, and since what was done then
        self._least = 1  # steps from there on before the pace tells anything
        self._note = ""
        self._task: Any = None

    def start(self) -> None:
        self._say._working += 1
        if self.total and not self._say.quiet and self._say.moves:
            with self._say._outliving():
                live = self._say._open_live()
                self._task = live.add_task(self._label, total=self.total, completed=self.done, times="", note="")

    def advance(self, steps: int = 1, *, note: str | None = None) -> None:
        """Count `steps` more as done; `note` is shown after the bar until another one replaces it."""
        self.done += steps
        if note is not None:
            self._note = clean(note)
        if self._say._unread:
            return
        if self._task is not None:
            with self._say._outliving():
                live = self._say._open_live()
                live.update(self._task, completed=self.done, times=self._times(), note=self._note)
        elif time.monotonic() - self._shown >= self._say.every_s:
            self._shown = time.monotonic()
            self._say(f"{self._label}  {self._count()}  {self._times()}  {self._note}".rstrip())

    def stop(self) -> None:
        """Remove the bar and leave one line that says how far it came."""
        try:
            if self._task is not None and not self._say._unread:
                with self._say._outliving():
                    self._say._open_live().remove_task(self._task)
                    self._say._close_live()
            self._task = None
            took = duration(time.monotonic() - self._began)
            if self.total:
                self._say(f"{self._label}  {self._count()} in {took}  {self._note}".rstrip())
        finally:
            self._say._working -= 1

    def pace(self, *, least: int) -> None:
        """The pace so far tells nothing about the rest; that from here on does, once `least` steps are done (0: never).

        Of games that are played at once none ends for a while, then many.
        """
        self._pace, self._least = (time.monotonic(), self.done) if least else None, least

    def eta_s(self) -> float | None:
        """Seconds left at the pace so far; None before that tells anything."""
        if self._pace is None:
            return None
        since, before = self._pace
        steps = self.done - before
        return (time.monotonic() - since) / steps * max(0, self.total - self.done) if steps >= self._least else None

    def _count(self) -> str:
        return f"{self.done}/{self.total} {self._unit}".rstrip()

    def _times(self) -> str:
        eta = self.eta_s()
        elapsed = duration(time.monotonic() - self._began)
        return f"{elapsed} elapsed" + (f", {duration(eta)} left" if eta is not None else "")


def _note_column() -> ProgressColumn:
    """What is said after the bar, cut where the line is full: the only column that may give way."""
    from rich.progress import ProgressColumn
    from rich.table import Column
    from rich.text import Text

    class Note(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(task.fields["note"], no_wrap=True, overflow="ellipsis")

    return Note(table_column=Column(no_wrap=False))


def _width(text: str) -> int:
    """Columns that `text` takes on a terminal: some letters take two."""
    from rich.cells import cell_len

    return cell_len(text)


def _aligned(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    gaps = [" " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)]
    padded = (cell + gap if i < left else gap + cell for i, (cell, gap) in enumerate(zip(cells, gaps, strict=True)))
    return "  ".join(padded).rstrip()
