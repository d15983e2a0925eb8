"""Every policy goes through a whole run: demonstrations, fine-tuning, PPO, evaluation, report."""

from __future__ import annotations

import gc
import re
import weakref
from copy import deepcopy
from pathlib import Path

import pytest

import tiny
from grue import games
from grue.config import override
from grue.errors import ConfigError
from grue.policy.decision import Decoding
from grue.progress import Progress
from grue.rollout.collect import collect
from grue.stages import run_all, run_stage
from grue.storage import episodes
from grue.storage.contents import read_metrics

SMALL = (
    "game.limit=4",
    "demos.games=4",
    "sft.epochs=1",
    "ppo.iterations=2",
    "ppo.episodes_per_iteration=4",
    "ppo.slots=4",
    "ppo.dev_games=2",
    "ppo.warmup_iterations=1",
    "eval.games=2",
    "eval.slots=2",
    "policy.reply_tokens=4",
    "policy.thought_tokens=3",
)


def chat_folder(folder: Path, template: str = tiny.CHAT) -> Path:
    tiny.save(folder, spread=0.1)
    words = deepcopy(tiny.tokenizer())
    words.chat_template = template
    words.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        ("policy.kind=score", "policy.normalise=word", "policy.list_actions=true"),
        ("policy.kind=write", "policy.top_p=0.9"),
        ("policy.kind=think", "policy.template=chat", "policy.history=2"),
    ],
    ids=["score", "write", "think"],
)
def test_a_run_of_every_kind(settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config(chat_folder(tmp_path / "model"), *SMALL, *settings)
    results = run_all(config, tmp_path / "run", say=Progress())
    for policy in ("base", "sft", "ppo"):
        for decoding in ("greedy", "sampled"):
            row = results["policies"][policy]["decoding"][decoding]
            assert row["games"] == 2 and row["failed"] == 0
            assert 0 <= row["invalid"] <= 1
            assert row["invalid"] == 0 or "policy.kind=write" in settings
    for row in read_metrics(tmp_path / "run", "ppo"):
        assert row["engine_gap"] < 1e-4
        assert row["invalid"] == 0 or "policy.kind=write" in settings
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "after PPO" in page
    assert ("Thought: </span>" in page) == ("Thought: " in capsys.readouterr().out) == ("policy.kind=think" in settings)


@pytest.mark.parametrize("kind", ["choose", "aligned", "score", "write", "think"])
def test_a_policy_that_nobody_holds_frees_its_model_at_once(kind: str) -> None:
    """Each row of an evaluation plays with a copy of the weights, and cycles are searched for hardly ever."""
    model = tiny.policy_model()
    player = tiny.player(model, kind=kind, reply_tokens=4, thought_tokens=3)
    there = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        seats = [games.make("toy") for _ in range(2)]
        collect(player, seats, tiny.tasks(2), Decoding(), seed="0", context=512, player=kind)
        del player, model
        assert there() is None
    finally:
        gc.enable()


def test_labels_are_smoothed_only_among_valid_actions(tmp_path: Path) -> None:
    """Over a whole vocabulary a little probability for each token is taught as random text."""
    folder, shares = chat_folder(tmp_path / "model"), ("sft.smoothing=0.2", "dagger.smoothing=0.2")
    rounds = ("dagger.rounds=1", "dagger.games_per_round=4", "dagger.slots=4", "dagger.steps=2", "dagger.dev_every=0")
    for kind in ("write", "choose"):
        out, config = tmp_path / kind, tiny.config(folder, *SMALL, *shares, *rounds, f"policy.kind={kind}")
        for stage in ("demos", "sft", "dagger"):
            run_stage(stage, config, out, say=Progress(quiet=True))
        for stage in ("sft", "dagger"):
            for row in read_metrics(out, stage):
                assert (row["loss"] == pytest.approx(row["nll"], rel=1e-5)) == (kind == "write")


def test_a_policy_that_may_not_write_as_much_as_its_teacher_does_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, said = chat_folder(tmp_path / "model"), {}
    for template in ("plain", "chat"):
        config = tiny.config(
            folder, *SMALL, "policy.kind=write", f"policy.template={template}", "policy.reply_tokens=2"
        )
        for stage in ("demos", "sft"):
            run_stage(stage, config, tmp_path / template, say=Progress(quiet=True))
        printed = capsys.readouterr()
        found = re.search(
            r"has (\d+) tokens, but the policy may write only policy.reply_tokens=2", printed.out + printed.err
        )
        assert found
        said[template] = int(found[1])
    actions = {
        turn.action for episode in episodes.read(tmp_path / "chat/episodes/demos.jsonl") for turn in episode.turns
    }
    assert said["plain"] == max(len(tiny.encoder().action(action)) for action in actions)
    # one token ends the line; what closes a message of a chat besides is not the policy's
    assert said["chat"] == max(len(tiny.tokenizer().encode(action)) for action in actions) + 1
    enough = override(config, [f"policy.reply_tokens={said['chat']}"], None)
    for stage in ("demos", "sft"):
        run_stage(stage, enough, tmp_path / "enough", say=Progress(quiet=True))
    assert "reply_tokens" not in "".join(capsys.readouterr())


def test_clip_bounds_that_rounding_crosses_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GSPO's bounds in 16 bits: about half of the turns had no gradient before anything was learnt."""
    bounds = ("ppo.ratio=decision", "ppo.clip=0.0003", "ppo.clip_high=0.0004", "ppo.warmup_iterations=0")
    settings = (*SMALL, "policy.kind=think", "sft.epochs=0", "ppo.iterations=1", "ppo.dev_every=0", *bounds)
    for dtype in ("bfloat16", "float32"):
        config = tiny.config(tiny.save(tmp_path / "model"), *settings, f"model.dtype={dtype}")
        for stage in ("demos", "sft", "ppo"):
            run_stage(stage, config, tmp_path / dtype, say=Progress(quiet=True))
        said = "".join(capsys.readouterr())
        assert ("outside of the clip bounds (0.9997 to 1.0004) before anything was learnt" in said) == (
            dtype == "bfloat16"
        )


def test_a_chat_template_that_changes_between_two_stages_is_refused(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "model")
    config = tiny.config(folder, *SMALL, "policy.template=chat")
    say = Progress(quiet=True)
    run_stage("demos", config, tmp_path / "run", say=say)
    run_stage("sft", config, tmp_path / "run", say=say)
    chat_folder(folder, tiny.CHAT.replace("<eos>\n{% endfor %}", "<eos>{% endfor %}"))
    with pytest.raises(ConfigError, match="the prompt format is not the one"):
        run_stage("ppo", config, tmp_path / "run", say=say)
