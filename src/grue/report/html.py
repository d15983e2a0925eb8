"""The page: `render(run_dir)` writes report.html, one file without scripts or outside links, from the run's files."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from grue.report.about_section import about_section, facts_line, glossary_section
from grue.report.headline import headline, missing, trains_nothing
from grue.report.learning_section import learning_section
from grue.report.markup import Html, tag
from grue.report.played_section import played_section
from grue.report.results_section import results_section
from grue.report.runfiles import RunFiles, read_run
from grue.storage.contents import REPORT
from grue.storage.files import explained, write_atomic

# No script, no font, no request: even if something slipped through the escaping, a browser would not run it.
_CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render(run_dir: Path) -> Path:
    """Write `run_dir`/report.html from the files in `run_dir` and return its path. The same files give the same page.

    Parts of a run that are missing or broken are named on the page. Raises DataError when `run_dir` is not a run.
    """
    run = read_run(run_dir)
    path = run_dir / REPORT
    with explained(f"write {path}"):
        write_atomic(path, page(run).encode())
    return path


def page(run: RunFiles) -> str:
    """The whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_CSP),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"grue: {run.name}"),
        # the style sheet is our own file: browsers do not unescape text inside <style>
        tag("style", Html(files("grue.report").joinpath("templates/page.css").read_text(encoding="utf-8"))),
    )
    body = tag(
        "body",
        _header(run),
        tag(
            "main",
            results_section(run.results, run.config),
            learning_section(run.stages, run.results, kept=run.kept, trains=not trains_nothing(run)),
            played_section(run.episodes),
            about_section(run),
            glossary_section(run),
        ),
        tag("footer", tag("p", "Made by grue from the files of the run. This page loads nothing and runs nothing.")),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _header(run: RunFiles) -> Html:
    found, facts = headline(run), facts_line(run)
    notes = [*missing(run), *run.problems]
    links = {
        "results": "Results",
        "training": "Training",
        "games": "Games",
        "about": "About this run",
        "words": "Glossary",
    }
    return tag(
        "header",
        tag("p", tag("b", "grue"), " run report ", tag("span", run.name, class_="name"), class_="kicker"),
        tag("h1", found.sentence),
        tag("p", found.context, class_="lead") if found.context else None,
        tag("p", facts, class_="facts") if facts else None,
        tag(
            "nav",
            *(tag("a", title, href=f"#{anchor}") for anchor, title in links.items()),
            aria_label="Parts of this page",
        ),
        tag("div", tag("h2", "What is missing or odd"), tag("ul", *(tag("li", note) for note in notes)), class_="notes")
        if notes
        else None,
    )
