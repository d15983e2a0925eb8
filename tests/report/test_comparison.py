"""The figure of `grue compare --plot`: what is drawn, of which runs, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from grue.cli.main import app
from grue.config import dump_config, load_config
from grue.errors import ConfigError, DataError
from grue.report.comparison import Curve, draw_comparison, mean_curve


def run(
    out: Path, success: Sequence[float], *, dev: Sequence[float] = (), stage: str = "ppo", score: float = 0.5
) -> Path:
    """A run directory with the lines that training logs, 10 environment steps an iteration, and its dev table."""
    out.mkdir()
    lines: list[dict[str, Any]] = [
        {"stage": stage, "step": n + 1, "success": won, "score": score, "env_steps_trained": 10 * (n + 1)}
        for n, won in enumerate(success)
    ]
    held_out = "dev" if stage == "ppo" else f"{stage}_dev"
    lines += [
        {"stage": held_out, "step": 2 * n, "success_greedy": won, "score_greedy": score} for n, won in enumerate(dev)
    ]
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    gold = {"fold": "dev", "games": 9, "success": 0.3, "score": 0.6}
    dev_rows = {"gold": {"decoding": {"scripted": gold}}, "sft": {"decoding": {"greedy": gold}}}
    (out / "results.json").write_text(json.dumps({"schema": 1, "policies": {}, "dev": dev_rows}))
    return out


def compared(*kinds: Sequence[Path], policy: str = "ppo") -> dict[str, Any]:
    """What `compare_runs` gives of them, as far as the figure reads it."""
    return {
        "policy": policy,
        "kinds": [
            {"settings": {"ppo.kl_coef": n}, "runs": [{"run": str(out)} for out in outs]}
            for n, outs in enumerate(kinds)
        ],
    }


def texts(path: Path) -> list[str]:
    return [
        " ".join("".join(element.itertext()).split())
        for element in ElementTree.parse(path).iter()
        if element.tag.endswith("text")
    ]


def test_the_mean_is_over_the_steps_that_all_trainings_have() -> None:
    one = Curve((0, 1, 2), (0, 10, 20), (0.0, 0.25, 0.5))
    other = Curve((0, 2, 3), (0, 40, 60), (0.5, 1.0, 1.0))
    assert mean_curve([one, other]) == Curve((0, 2), (0, 30), (0.25, 0.75))
    assert mean_curve([one]) == one


def test_each_kind_has_its_line_and_its_name(tmp_path: Path) -> None:
    a = [run(tmp_path / f"a{n}", [0.1, 0.5, 0.7 + n / 10], dev=[0.1, 0.4]) for n in range(2)]
    b = [run(tmp_path / "b", [0.0, 0.2, 0.3], dev=[0.1, 0.2])]
    draw_comparison(compared(a, b), tmp_path / "new" / "curves.svg")
    shown = texts(tmp_path / "new" / "curves.svg")
    assert "A ppo.kl_coef=0: mean of 2 trainings; thin lines: each of them" in shown
    assert "B ppo.kl_coef=1: one training" in shown
    assert "success, train games, sampled, as it learns" in shown and "success, dev games, greedy" in shown
    assert "gold" in shown and "SFT" not in shown  # what a seed changes is no level of all runs
    draw_comparison(compared(a), tmp_path / "alone.svg")
    assert "mean of 2 trainings; thin lines: each of them" in texts(tmp_path / "alone.svg")


def test_the_figure_says_what_it_shows(tmp_path: Path) -> None:
    outs = [run(tmp_path / f"a{n}", [0.1, 0.5], dev=[0.1, 0.4]) for n in range(2)]
    games = ("toy", "toy"), ("toy", "coin")
    for named, said in zip(games, ("PPO on toy, preset smoke, 2 seeds", "PPO, preset smoke, 2 seeds"), strict=True):
        for seed, (out, game) in enumerate(zip(outs, named, strict=True)):
            (out / "config.yaml").write_text(f"preset: smoke\nseed: {seed}\ngame: {{name: {game}}}\n")
        draw_comparison(compared(outs), tmp_path / "curves.svg")
        assert said in texts(tmp_path / "curves.svg")
        assert f"<title>{said}</title>" in (tmp_path / "curves.svg").read_text()
    draw_comparison(compared(outs[:1], outs[1:]), tmp_path / "kinds.svg")
    assert "PPO, preset smoke" in texts(tmp_path / "kinds.svg")  # the kinds have other seeds


def test_the_base_is_a_level_where_it_is_one_model(tmp_path: Path) -> None:
    """It was that of the first run, whatever model the others had."""
    outs = [run(tmp_path / str(n), [0.1, 0.5], dev=[0.1, 0.4]) for n in range(2)]

    def shown_with(*base: float) -> list[str]:
        for out, success in zip(outs, base, strict=True):
            found = json.loads((out / "results.json").read_text())
            found["dev"]["base"] = {"decoding": {"greedy": {"fold": "dev", "games": 9, "success": success}}}
            (out / "results.json").write_text(json.dumps(found))
        draw_comparison(compared(outs[:1], outs[1:]), tmp_path / "curves.svg")
        return texts(tmp_path / "curves.svg")

    assert "base" in shown_with(0.2, 0.2)
    assert "base" not in shown_with(0.2, 0.9)


def test_levels_of_other_games_than_the_curves_are_said_to_be(tmp_path: Path) -> None:
    out = run(tmp_path / "a", [0.1, 0.5], dev=[0.1, 0.4])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for games, said in ((9, False), (4, True)):
        measured = [line | ({"games": games, "failed": 0} if line["stage"] == "dev" else {}) for line in lines]
        (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in measured))
        draw_comparison(compared([out]), tmp_path / "curves.svg")
        assert any("(dotted: on 9 games)" in text for text in texts(tmp_path / "curves.svg")) == said
    other = run(tmp_path / "b", [0.1, 0.5], dev=[0.1, 0.4])
    found = json.loads((other / "results.json").read_text())
    for name in found["dev"]:
        for row in found["dev"][name]["decoding"].values():
            row["games"] = 1009
    (other / "results.json").write_text(json.dumps(found))
    draw_comparison(compared([out, other]), tmp_path / "curves.svg")
    assert any("(dotted: on 9 to 1,009 games)" in text for text in texts(tmp_path / "curves.svg"))


def test_the_lines_are_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))[1])
    a = [run(tmp_path / f"a{n}", [0.1, 0.5, 0.7 + n / 10], dev=[0.1, 0.4]) for n in range(2)]
    draw_comparison(compared(a), tmp_path / "curves.png")
    own, held_out = drawn[0].axes
    lines = [(list(line.get_xdata()), [round(float(y), 3) for y in line.get_ydata()]) for line in own.lines]
    assert lines == [
        ([10, 20, 30], [0.1, 0.5, 0.7]),
        ([10, 20, 30], [0.1, 0.5, 0.8]),
        ([10, 20, 30], [0.1, 0.5, 0.75]),
    ]
    mean = held_out.lines[2]
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([0, 20], [0.1, 0.4])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_where_nothing_is_won_the_score_is_drawn(tmp_path: Path) -> None:
    draw_comparison(compared([run(tmp_path / "a", [0.0, 0.0], dev=[0.0])]), tmp_path / "a.svg")
    assert "score, train games, sampled, as it learns" in texts(tmp_path / "a.svg")


def test_dagger_has_its_own_curves_and_dev_games_may_be_absent(tmp_path: Path) -> None:
    out = run(tmp_path / "a", [0.2, 0.4], stage="dagger")
    draw_comparison(compared([out], policy="dagger"), tmp_path / "a.svg")
    assert not any("dev games" in text for text in texts(tmp_path / "a.svg"))


def test_what_cannot_be_drawn_is_one_error(tmp_path: Path) -> None:
    out = run(tmp_path / "a", [0.2, 0.4])
    with pytest.raises(DataError, match="sft plays no games") as caught:
        draw_comparison(compared([out], policy="sft"), tmp_path / "a.svg")
    assert "--policy" in caught.value.hint
    with pytest.raises(ConfigError, match=r"curves\.gif"):
        draw_comparison(compared([out]), tmp_path / "curves.gif")
    (out / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match="a logged no games of ppo"):
        draw_comparison(compared([out]), tmp_path / "a.svg")
    file = run(tmp_path / "b", [0.2]) / "results.json"
    with pytest.raises(DataError, match="cannot write"):
        draw_comparison(compared([tmp_path / "b"]), file / "a.svg")


def test_the_name_of_the_figure_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a"
    out.mkdir()
    (out / "config.yaml").write_text(dump_config(load_config("toy")))
    with pytest.raises(SystemExit) as left:
        app(["compare", str(out), "--plot", "curves.gif"])
    assert left.value.code == 2
    assert "curves.gif" in capsys.readouterr().err
