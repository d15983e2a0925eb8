"""The code of docs/python.md runs as it stands; docs/settings.md lists the settings that there are."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from grue.cli.reference import page
from grue.config import load_config
from grue.progress import Progress
from grue.stages import run_all

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALL = ["demos.games=8", "ppo.iterations=1", "ppo.episodes_per_iteration=16", "ppo.dev_games=4", "eval.games=4"]


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 8
    monkeypatch.chdir(tmp_path)
    run_all(load_config("toy", SMALL), Path("runs/toy"), say=Progress(quiet=True))
    names: dict[str, object] = {}
    assert sum("range(40)" in block for block in blocks) == 1  # which would take minutes
    for block in blocks:
        if "grue.retrieval" in block and find_spec("bm25s") is None:
            continue
        exec(compile(block.replace("range(40)", "range(2)"), str(PAGE), "exec"), names)
    assert Path("mine.jsonl").stat().st_size > 0
    assert Path("runs/small/report.html").exists()


def test_the_page_of_settings_is_up_to_date() -> None:
    made_by = "python -m grue.cli.reference > docs/settings.md"
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == page(), made_by
