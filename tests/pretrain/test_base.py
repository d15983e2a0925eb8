"""How the base is made, in small: transcripts from the real game, the tokenizer, a few steps of training."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

import tiny
from grue.errors import CheckpointError, DataError, TrainingError
from grue.games import FOLDS, tasks
from grue.games.ranges import FAMILIES as ALL_FAMILIES
from grue.games.twx.food_names import game_foods
from grue.games.twx.game import TwxGame
from grue.games.twx.recipes import recipe_in
from grue.interrupt import Interrupt, Interrupted
from grue.pretrain.corpus import Recording, Transcript, augment, read_corpus, record
from grue.pretrain.families import FAMILIES, NUMBERS, record_families
from grue.pretrain.heldout import held_out
from grue.pretrain.main import GAME, PARAMS, RECORD_LIMIT, main, record_corpus, tokenizer_texts
from grue.pretrain.shuffled import record_shuffled
from grue.pretrain.tokenizer import train_tokenizer
from grue.pretrain.train import Recipe, batches, build_model, encode, loss_of, save, thinned, train
from grue.progress import Progress
from grue.prompts.tokens import Encoder
from grue.storage import checkpoint
from grue.storage.files import lock

QUIET = Progress(quiet=True)
PHASES = ("first", "second")
TINY = Recipe(
    passes=1.0,
    episodes_per_batch=4,
    warmup_steps=2,
    hidden=32,
    layers=2,
    heads=4,
    key_value_heads=2,
    intermediate=64,
    learning_rate=5e-3,
)


@pytest.fixture(scope="module")
def game() -> Iterator[TwxGame]:
    game = TwxGame(GAME, PARAMS)
    yield game
    game.close()


@pytest.fixture(scope="module")
def recorded(game: TwxGame) -> dict[str, Transcript]:
    """One real game of each player."""
    played = tasks(GAME, PARAMS, "pretrain", RECORD_LIMIT, 3)
    players = ("gold", "noisy", "random")
    return {p: record(game, task, p, 0.3, random.Random(5)) for p, task in zip(players, played, strict=True)}


@pytest.fixture(scope="module")
def tokenizer(recorded: dict[str, Transcript]) -> PreTrainedTokenizerFast:
    return train_tokenizer(tokenizer_texts(list(recorded.values())), 512, game_foods())


def replayed(game: TwxGame, transcript: Transcript) -> tuple[list[str], bool]:
    (task,) = tasks(GAME, PARAMS, "pretrain", RECORD_LIMIT, 1, start=transcript.seed - FOLDS["pretrain"].start)
    seen, won = [game.reset(task).text], False
    for action in transcript.actions:
        observation, _, outcome = game.step(action)
        seen.append(observation.text)
        won = str(outcome) == "won"
    return seen, won


def test_transcripts_are_real_games_of_the_pretrain_fold(game: TwxGame, recorded: dict[str, Transcript]) -> None:
    for player, transcript in recorded.items():
        assert transcript.player == player
        assert transcript.seed in FOLDS["pretrain"]
        assert len(transcript.observations) == len(transcript.actions) + 1 == len(transcript.valid) + 1
        seen, won = replayed(game, transcript)
        assert list(transcript.observations) == seen
        assert transcript.won is won
    assert recorded["gold"].won
    assert recorded["noisy"].won
    assert len(recorded["random"].actions) <= 16
    assert any(recipe_in(text) for text in recorded["gold"].observations)


def test_noise_only_ever_adds_steps_to_gold(game: TwxGame, recorded: dict[str, Transcript]) -> None:
    noisy = recorded["noisy"]
    (task,) = tasks(GAME, PARAMS, "pretrain", RECORD_LIMIT, 1, start=noisy.seed - FOLDS["pretrain"].start)
    game.reset(task, gold=True)
    rest = iter(noisy.actions)
    assert all(action in rest for action in game.gold())  # gold is a subsequence
    assert len(noisy.actions) > len(game.gold())


def test_a_transcript_depends_on_its_seed_alone() -> None:
    two, three = list(record_corpus(2)), list(record_corpus(3))
    assert three[:2] == two
    assert list(record_corpus(3, two[-1].seed)) == three[2:]


def digest(transcripts: Iterable[Transcript]) -> str:
    return hashlib.sha256("\n".join(json.dumps(asdict(t)) for t in transcripts).encode()).hexdigest()


def test_the_same_seeds_give_the_same_games_in_every_version_of_grue(tmp_path: Path) -> None:
    """The first games of the three corpora. Another version of TextWorldExpress, which is pinned, may make others."""
    first, second = list(record_corpus(12)), list(record_shuffled(12, PARAMS))
    assert {transcript.player for transcript in first} == {"random", "gold", "noisy"}
    assert any(not all(transcript.valid) for transcript in second)  # a noisy one
    assert digest(first) == "0111bc19e43090284617ad110dba22d4000f8e69daeda141ebe2e715ca92319d"
    assert digest(second) == "e66b86c4ab6b415236c5a1e6186c0d44145c611a6dcea03dd17b0fe554d3263e"
    families = record_families(14, Recording(tmp_path, QUIET, Interrupt()))
    assert digest(families) == "5ef902880475edc06ad69780d9923cdc2dc305893050813f171bc562613b7c87"


def test_the_other_families_are_played_by_gold_on_layouts_of_their_own(tmp_path: Path) -> None:
    recording = Recording(tmp_path, QUIET, Interrupt())
    transcripts = record_families(30, recording)
    assert record_families(30, recording) == transcripts
    assert {transcript.game for transcript in transcripts} == set(FAMILIES) == set(ALL_FAMILIES) - {"cookingworld"}
    for transcript in transcripts:
        assert transcript.won or transcript.game == "coin"  # its gold walks at random
        assert transcript.player == "gold"
        assert transcript.seed in FOLDS["pretrain"]
        assert transcript.listed
    quantities = {tuple(t.actions) for t in transcripts if t.game == "sorting"}
    for original in (t for t in transcripts if t.game == "sorting"):
        other = augment(original, random.Random(7), original=0.0)
        assert tuple(other.actions) not in quantities
        assert len(other.actions) == len(original.actions)


def test_a_number_is_one_token() -> None:
    numbered = train_tokenizer(["take 5kg of oak", "a 50 b"], 400, NUMBERS)
    assert numbered.tokenize("take 25kg of 5 oak and 500 bananas")[1] == " 25"
    assert " 5" in numbered.tokenize("take 25kg of 5 oak")


def test_shuffled_gold_does_all_that_gold_does_and_still_wins(game: TwxGame) -> None:
    changed = learnt = 0
    for transcript in record_shuffled(12, PARAMS):
        assert transcript.won
        assert transcript.seed in FOLDS["pretrain"]
        assert len(transcript.observations) == len(transcript.actions) + 1 == len(transcript.valid) + 1
        own = [action for action, ours in zip(transcript.actions, transcript.valid, strict=True) if ours]
        learnt += len(own)
        assert own[-2:] == ["prepare meal", "eat meal"]
        (task,) = tasks(GAME, PARAMS, "pretrain", RECORD_LIMIT, 1, start=transcript.seed - FOLDS["pretrain"].start)
        if game.reset(task, gold=True).text != transcript.observations[0]:
            continue  # a kitchen of another size
        gold = game.gold()
        listed = [action for action, (ours, _) in zip(gold, game.rehearse(gold), strict=True) if ours]
        assert sorted(own) == sorted(listed)
        changed += own != listed
    assert changed >= 3
    assert learnt > 150


def test_a_corpus_is_recorded_once_and_a_stopped_recording_goes_on(tmp_path: Path) -> None:
    asked: list[int] = []

    def recorded(after: int) -> Iterator[Transcript]:
        asked.append(after)
        return record_corpus(60, after)

    stop = Interrupt()
    stop.adopt(signal.SIGINT)  # as if somebody had pressed Ctrl-C: ends at the first safe point, which is game 50
    with pytest.raises(Interrupted):
        Recording(tmp_path, QUIET, stop).of("corpus", 60, recorded)
    file = tmp_path / "corpus.jsonl"
    begun = read_corpus(file)
    assert len(begun) == 50
    with file.open("a") as opened:
        opened.write('{"seed": 1000')  # a kill tears the line that is being written
    whole = Recording(tmp_path, QUIET, Interrupt()).of("corpus", 60, recorded)
    assert whole[:50] == begun
    assert [t.seed for t in whole] == [t.seed for t in tasks(GAME, PARAMS, "pretrain", RECORD_LIMIT, 60)]
    assert Recording(tmp_path, QUIET, Interrupt()).of("corpus", 10, recorded) == whole[:10]
    assert asked == [0, begun[-1].seed]
    with file.open("a") as opened:
        opened.write('{"seed": 1}\n')
    with pytest.raises(DataError, match=r"corpus.jsonl:61 is no transcript"):
        read_corpus(file)


def test_the_tokenizer_has_the_size_asked_for_and_whole_food_names(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == 512
    encoder = Encoder(tokenizer)
    for food in game_foods():
        token = tokenizer.convert_tokens_to_ids(f" {food}")
        assert token != tokenizer.unk_token_id
        # one token, whatever it stands in: an action, a list of ingredients, a sentence
        for ids in (
            encoder.action(f"take {food}"),
            encoder.observation(f"Ingredients:\n  {food}\n"),
            encoder.observation(f"You also see a raw {food}, and a pan."),
        ):
            assert ids.count(token) == 1, food


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_tokenizer_loses_nothing(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    text = f"You see a raw red apple. {text} red apple,red apple"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text or "<" in text


def test_merges_cross_spaces_but_no_sentence(
    tokenizer: PreTrainedTokenizerFast, recorded: dict[str, Transcript]
) -> None:
    pieces = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    assert any(" " in piece.strip() for piece in pieces if piece.strip() not in game_foods())
    assert not any(piece.strip()[:-1].count(".") for piece in pieces)
    # the whole names leave no part of themselves in the merges, and text shrinks to a fraction of its letters
    text = " ".join(recorded["gold"].observations)
    assert len(tokenizer.encode(text)) < len(text) / 4


def test_without_whole_names_merges_are_learned_too() -> None:
    """The toy's tokenizer has no whole names."""
    assert len(tiny.tokenizer()) == 320
    assert len(tiny.encoder().action("go east")) < len(" go east\n")


def test_weights_of_the_loss_by_hand(tokenizer: PreTrainedTokenizerFast) -> None:
    """Nothing for the header, 0.2 for observations, 1 for valid actions, nothing for invalid ones."""
    encoder = Encoder(tokenizer)
    observations, actions = ("A room.", "You look.", "Nothing."), ("look around", "sing")
    played = Transcript(1, "gold", "Cook!", observations, actions, (True, False), False)
    ids, weights = encode(played, encoder, 16, 0.2)
    pieces = [
        (encoder.task("Cook!", 16), 0.0),
        (encoder.observation("A room."), 0.2),
        (encoder.action("look around"), 1.0),
        (encoder.observation("You look."), 0.2),
        (encoder.action("sing"), 0.0),
        (encoder.observation("Nothing."), 0.2),
    ]
    assert ids == [token for piece, _ in pieces for token in piece]
    assert weights == [weight for piece, weight in pieces for _ in piece]


def test_half_of_the_observation_tokens_are_scored_with_twice_the_weight() -> None:
    weights_BT = torch.tensor([0.0, 0.2, 1.0]).repeat_interleave(2000)[None]
    thin = thinned(weights_BT, 0.5, torch.Generator().manual_seed(3))
    header, observed, acted = thin[0].split(2000)
    assert (header == 0).all()
    assert (acted == 1).all()
    assert sorted(set(observed.tolist())) == pytest.approx([0.0, 0.4])
    assert float(observed.mean()) == pytest.approx(0.2, rel=0.1)
    assert torch.equal(thinned(weights_BT, 1.0, torch.Generator()), weights_BT)


def test_batches_hold_every_transcript_once(
    tokenizer: PreTrainedTokenizerFast, recorded: dict[str, Transcript]
) -> None:
    corpus = list(recorded.values()) * 3
    found = list(batches(corpus, Encoder(tokenizer), TINY, random.Random(0)))
    assert sorted(len(ids) for ids, _ in found) == [1, 4, 4]
    for ids_BT, weights_BT in found:
        assert ids_BT.shape == weights_BT.shape
        assert (ids_BT[:, 0] == tokenizer.bos_token_id).all()
        assert (weights_BT[ids_BT == tokenizer.pad_token_id] == 0).all()


def test_a_few_steps_reduce_the_loss_and_leave_a_base_that_loads(
    tokenizer: PreTrainedTokenizerFast, recorded: dict[str, Transcript], tmp_path: Path
) -> None:
    corpus = list(recorded.values()) * 4  # 12 transcripts, 4 a batch: 20 steps are 20 / 3 passes
    recipe = replace(TINY, passes=20 / 3)

    def trained(
        name: str, recipe: Recipe, stop: Interrupt, tokenizer: PreTrainedTokenizerFast = tokenizer
    ) -> PreTrainedModel:
        places = {"out": tmp_path / name, "checkpoints": tmp_path / f"{name}-checkpoints"}
        return train(corpus, tokenizer, recipe, **places, say=QUIET, interrupt=stop)

    model = trained("base", recipe, Interrupt())
    encoder = Encoder(tokenizer)
    (ids_BT, weights_BT), *_ = batches(corpus[:4], encoder, recipe, random.Random(1))
    untrained = trained("none", replace(recipe, passes=0.0), Interrupt())
    with torch.no_grad():
        before, after = (float(loss_of(m.float(), ids_BT, weights_BT)[0]) for m in (untrained, model))
    assert before == pytest.approx(math.log(len(tokenizer)), rel=0.1)  # it knew nothing
    assert after < before - 1

    for step in (1, 2):  # stopped twice, each time after one step more
        stop = Interrupt()
        stop.adopt(signal.SIGTERM)
        with pytest.raises(Interrupted):
            trained("stopped", recipe, stop)
        assert [path.name for path in (tmp_path / "stopped-checkpoints").iterdir()] == [f"step-0000000{step}"]
    folder = tmp_path / "stopped-checkpoints"  # as it was when a tokenizer's hash had fewer parts
    stored = checkpoint.load(folder / "step-00000002")
    shutil.rmtree(folder)
    older = stored.state | {"tokenizer": stored.state["tokenizer"].rpartition("-")[0]}
    checkpoint.save(folder, 2, stored.tensors, older)
    again = trained("stopped", recipe, Interrupt())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    assert (tmp_path / "base/model.safetensors").read_bytes() == (tmp_path / "stopped/model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"was made with learning_rate=0.005, not 0.1"):
        trained("stopped", replace(recipe, learning_rate=0.1), Interrupt())
    other = train_tokenizer(tokenizer_texts(corpus), 400, game_foods())
    with pytest.raises(CheckpointError, match=r"was made with vocabulary=512, not 400"):
        trained("stopped", recipe, Interrupt(), other)
    alike = train_tokenizer(tokenizer_texts(corpus[:1]), 512, game_foods())
    assert len(alike) == len(tokenizer)
    with pytest.raises(CheckpointError, match=r"was made with tokenizer="):
        trained("stopped", recipe, Interrupt(), alike)
    with pytest.raises(TrainingError, match=r"the loss of pretraining step 3 is nan"):
        trained("diverged", replace(recipe, learning_rate=1e30), Interrupt())

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    stored = AutoTokenizer.from_pretrained(tmp_path / "base")
    with torch.no_grad():
        # what is stored is rounded to bfloat16
        assert float(loss_of(loaded, ids_BT, weights_BT)[0]) == pytest.approx(after, rel=0.02)
    text = "You see a raw red apple. <eos>"
    assert Encoder(stored).observation(text) == encoder.observation(text)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write .*file: "):
        save(model, tokenizer, tmp_path / "file")


def test_what_is_measured_on_unread_games_by_hand(tokenizer: PreTrainedTokenizerFast) -> None:
    """The loss of valid actions alone, summed over the tokens of an action, in games that were won."""
    encoder = Encoder(tokenizer)
    observations, actions = ("A room.", "You look.", "Nothing."), ("look around", "sing")
    played = Transcript(1, "gold", "Cook!", observations, actions, (True, False), True)
    model = build_model(tokenizer, TINY)
    before = [*encoder.task("Cook!", 16), *encoder.observation("A room.")]
    action = encoder.action("look around")
    with torch.no_grad():
        logits = model(torch.tensor([[*before, *action]])).logits[0, len(before) - 1 : -1]
    chosen = logits.log_softmax(-1)[range(len(action)), action]
    measured = held_out(model, encoder, [played, replace(played, won=False, goal="Eat!")])
    assert measured.loss == pytest.approx(-float(chosen.sum()), rel=1e-4)
    assert measured.accuracy == pytest.approx(float((logits.argmax(-1) == torch.tensor(action)).float().mean()))
    with pytest.raises(DataError, match="none of the held-out games was won"):
        held_out(model, encoder, [replace(played, won=False)])


@pytest.mark.skipif(sys.platform == "win32", reason="locks are POSIX ones")
def test_two_commands_do_not_record_into_one_folder(tmp_path: Path) -> None:
    lock(tmp_path / ".lock", "", "")
    command = [sys.executable, "-m", "grue", "pretrain", "--out", str(tmp_path), "--games", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert "another process is working on" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.slow
def test_the_command_makes_a_base_and_measures_it_on_games_it_has_not_read(tmp_path: Path) -> None:
    base = main(tmp_path, games=12, shuffled_games=8, family_games=7, passes=1.0, vocabulary=600, say=QUIET)
    made = json.loads((base / "made.json").read_text())
    assert made["games"] == 12
    assert len(AutoTokenizer.from_pretrained(base)) == made["vocabulary"] == 600
    assert set(made["held_out"]) == {f"{p} phase, games of the {g}" for p in PHASES for g in PHASES}
    for found in made["held_out"].values():
        assert 0 < found["loss"] < 100
        assert 0 <= found["accuracy"] < 1
    learnt = {t.seed for name in ("corpus", "shuffled") for t in read_corpus(tmp_path / f"{name}.jsonl")}
    unread = {t.seed for phase in PHASES for t in read_corpus(tmp_path / f"held-out-{phase}.jsonl")}
    assert len(unread) > 15
    assert not learnt & unread
