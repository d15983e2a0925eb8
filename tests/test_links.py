"""Relative links of the documents lead somewhere: the file is there, and so is the heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "tutorials/*.md")
    for path in sorted(ROOT.glob(pattern))
]
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Of each heading as GitHub makes them: lower case, no punctuation, a hyphen for each space, copies numbered."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    for heading in HEADING.findall(outside):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {f"{anchor}-{copy}" if copy else anchor for anchor, last in found.items() for copy in range(last + 1)}


def test_an_anchor_is_made_as_github_makes_it() -> None:
    text = "# What `a_b` costs: 0.24 B, [why](x.md)?\n```\n# no heading\n```\n## Two  spaces\n## Again\n## Again\n"
    assert anchors(text) == {"what-a_b-costs-024-b-why", "two--spaces", "again", "again-1"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    lost = []
    for link in LINK.findall(CODE.sub("`code`", document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            lost.append(link)
    assert lost == []
