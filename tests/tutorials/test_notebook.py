"""The tutorial: its source and the notebook are the same, no cell is hidden, and it runs from top to bottom."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import pytest

from test_links import anchors as headings

FOLDER = Path(__file__).parents[2] / "tutorials"
SOURCE, NOTEBOOK = FOLDER / "grue_tutorial.py", FOLDER / "grue_tutorial.ipynb"


def _cells() -> list[tuple[str, str]]:
    """(kind, text) of the percent format's cells."""
    found = []
    for part in re.split(r"^# %%", SOURCE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        first, _, body = part.partition("\n")
        kind = "markdown" if "[markdown]" in first else "code"
        lines = body.strip("\n").split("\n")
        text = "\n".join(re.sub(r"^# ?", "", line) for line in lines) if kind == "markdown" else "\n".join(lines)
        found.append((kind, text))
    return found


def test_the_notebook_is_the_source_with_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert cells == _cells(), "make it again: see tutorials/README.md"
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 8


def test_no_cell_is_hidden() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        assert not any("hide" in tag or "remove" in tag for tag in cell["metadata"].get("tags", ()))
        assert not cell["metadata"].get("jupyter", {}).get("source_hidden")


def test_every_work_that_is_cited_is_in_the_references_and_the_other_way_round() -> None:
    prose = "\n\n".join(text for kind, text in _cells() if kind == "markdown")
    text, references = prose.split("## References")
    listed = set(re.findall(r"^- (\w[\w-]*)\b[^\n]*? (\d{4})\.", references, flags=re.MULTILINE))
    names = re.compile(r"([A-ZÀ-Þ][\w-]+)(?:(?:, [A-ZÀ-Þ][\w-]+)* and [A-ZÀ-Þ][\w-]+| et al\.)? \(?(\d{4})\)?")
    cited = {(name, year) for name, year in names.findall(" ".join(text.split()))}
    assert len(listed) > 15
    assert cited == listed


def test_links_to_sections_and_files_exist() -> None:
    text = SOURCE.read_text(encoding="utf-8")
    anchors = set(re.findall(r'<a name="([\w-]+)">', text))
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) == anchors
    for link in re.findall(r"\]\(((?!http|#)[^)]+)\)", text):
        name, _, anchor = link.partition("#")
        assert (FOLDER / name).exists(), link
        assert not anchor or anchor in headings((FOLDER / name).read_text(encoding="utf-8")), link


def test_code_cells_parse_and_exercises_have_solutions() -> None:
    code = [text for kind, text in _cells() if kind == "code"]
    for text in code:
        ast.parse(text)
    joined = "\n".join(code)
    exercises = set(re.findall(r"\*\*Exercise (\d)\.\*\*", SOURCE.read_text(encoding="utf-8")))
    assert exercises == set(re.findall(r"def solution_(\d)", joined)) == set(re.findall(r"def check_(\d)", joined))


@pytest.mark.slow
def test_it_runs_from_top_to_bottom_in_fast_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel", reason="the extra [notebooks] is not installed")
    jupytext = pytest.importorskip("jupytext", reason="the extra [notebooks] is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the extra [notebooks] is not installed")
    monkeypatch.setenv("GRUE_TUTORIAL_FAST", "1")
    monkeypatch.setenv("MPLBACKEND", os.environ.get("MPLBACKEND", "module://matplotlib_inline.backend_inline"))
    notebook = jupytext.read(SOURCE)
    nbclient.NotebookClient(
        notebook, timeout=1800, startup_timeout=600, resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output
    )
    for number in range(1, 7):
        assert f"Exercise {number}: no answer yet" in printed
        assert f"Exercise {number}: correct" in printed
