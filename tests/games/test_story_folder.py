"""A folder of TextWorld games, as files: the engine is not needed."""

from __future__ import annotations

from pathlib import Path

from grue.games.textworld.folder import story_files, without_description


def test_stories_without_their_description_are_left_out_and_counted(tmp_path: Path) -> None:
    for name in ("train/a.z8", "train/a.json", "train/more/b.z8", "train/.hidden.z8", "valid/c.z8", "valid/c.json"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    game = f"textworld:{tmp_path}"
    assert [file.name for file in story_files(game, "train")] == ["a.z8"]
    assert [without_description(game, fold) for fold in ("train", "dev", "test")] == [1, 0, 0]
