"""A memory of episodes: what is noted, what is found, and how it reaches the transcript."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

import tiny
from grue import games
from grue.errors import ConfigError
from grue.games.faults import Guarded
from grue.games.play import play
from grue.games.teachers import HasGold, teacher
from grue.games.teachers.optimal import SeesAll
from grue.games.teachers.planned import CanAdvise, CanPlan
from grue.games.teachers.scripted import CanRehearse, HasWords
from grue.games.toy import ToyGame
from grue.policy.decision import Decoding
from grue.rollout.collect import collect
from grue.rollout.pack import tokenise
from grue.types import Episode, Observation, Outcome, Turn

pytest.importorskip("bm25s", reason="the extra [retrieval] is not installed")

from grue.retrieval.memory import Memories, Memory, Remembering, direct, note_of, remembered


def _played(count: int = 12) -> list[Episode]:
    return list(tiny.scripted("gold", count))


def test_a_note_holds_the_actions_their_success_and_the_end() -> None:
    episode = _played()[0]
    note = note_of(episode)
    assert note is not None and note.task == episode.task and note.begins == episode.turns[0].observation.text
    assert "take gem +" in note.text and note.text.endswith("It was won.")
    assert note.text.count(",") == episode.steps - 1
    lost = note_of(replace(episode, outcome=Outcome.LIMIT))
    assert lost is not None and lost.text.endswith("It was out of time.")
    short = note_of(episode, most=1)
    assert short is not None and short.text == f"Before: {episode.turns[0].action}. It was won."
    assert note_of(replace(episode, turns=())) is None
    assert note_of(replace(episode, outcome=Outcome.FAILED)) is None


def test_a_way_is_not_cut_short_where_two_places_answer_alike() -> None:
    """Both sacks are empty, but the rooms are not the same."""
    room = Observation("Sack.", "Find it.", "", ("go east", "open sack"), 0.0)
    empty = replace(room, text="It is empty.")
    there = replace(room, actions=("go west", "open sack", "take coin"))
    seen = (room, empty, there, replace(there, text="It is empty."))
    actions = ("open sack", "go east", "open sack", "take coin")
    turns = [Turn(one, action, float(action == "take coin")) for one, action in zip(seen, actions, strict=True)]
    assert [turn.action for turn in direct(turns)] == [*actions]


def test_what_two_notes_say_alike_is_told_once() -> None:
    (one, *_), others = _played(1), _played(4)[1:]
    alike = replace(one, task=replace(one.task, seed=99))
    begins = one.turns[0].observation.text
    found = Memory([one, one, alike, *others]).search(begins, 3)
    assert found[0].task == one.task and len({note.text for note in found}) == 3


def test_players_remember_games_and_not_plays() -> None:
    gold, random = _played(6), list(tiny.scripted("random", 6))
    memories = Memories([*gold, *random], places=3)
    told = [memories.told(episode.task, _begins(episode), 9, own=True) for episode in gold]
    assert [{note.task.seed for note in notes} for notes in told] == [{0, 1, 2}] * 3 + [{3, 4, 5}] * 3


def _begins(episode: Episode) -> str:
    return episode.turns[0].observation.text


def test_the_note_of_the_very_game_is_found_first() -> None:
    episodes = _played()
    memory = Memory(episodes)
    assert len(memory) == len(episodes)
    beginnings = [episode.turns[0].observation.text for episode in episodes]
    for episode, begins in zip(episodes, beginnings, strict=True):
        if beginnings.count(begins) == 1:
            assert memory.search(begins)[0].task == episode.task


def test_a_games_own_note_can_be_left_out() -> None:
    episodes = _played()
    memory = Memory(episodes)
    for episode in episodes:
        longer = replace(episode.task, limit=99)
        found = memory.search(episode.turns[0].observation.text, 3, without=longer)
        assert len(found) == 3 and all(note.task.seed != episode.task.seed for note in found)
    begins = episodes[0].turns[0].observation.text
    for game in ("toy", "cookingworld"):  # of the first, several seeds make the same game
        one = replace(episodes[0], task=replace(episodes[0].task, game=game, params=""))
        assert Memory([one]).search(begins)
        assert Memory([one]).search(begins, without=replace(one.task, limit=99)) == []


def test_an_empty_memory_and_unknown_words_find_nothing_wrong() -> None:
    assert Memory([]).search("a hall") == []
    memory = Memory(_played(3))
    assert memory.search("") == [] and memory.search("a hall", 0) == []
    assert len(memory.search("zzz qqq", 2)) == 2  # no word is known: any notes, in their order


def test_words_of_every_script_are_found_and_none_are_no_error() -> None:
    def begins(text: str) -> Episode:
        first, *others = _played(1)[0].turns
        turns = (replace(first, observation=replace(first.observation, text=text)), *others)
        return replace(_played(1)[0], turns=turns)

    memory = Memory([begins("a hall"), begins("אתה במטבח"), begins("Вы на кухне"), begins("Vous êtes au café")])
    for words in ("a hall", "במטבח", "КУХНЕ", "café"):
        assert words.lower() in memory.search(words)[0].begins.lower()
    silent = Memory([begins(""), begins("...")])
    assert len(silent) == 2 and silent.search("a hall") == []


def test_notes_stand_in_the_goal_through_the_whole_game() -> None:
    memory, task = Memory(_played()), tiny.tasks(1)[0]
    plain, told = games.make("toy"), Remembering(games.make("toy"), memory)
    observation, with_note = plain.reset(task), told.reset(task)
    assert with_note == replace(observation, goal=with_note.goal)
    assert with_note.goal.startswith(observation.goal + "\nBefore: ")
    after, reward, outcome = told.step("look")
    assert after.goal == with_note.goal and (reward, outcome) == plain.step("look")[1:]


class _Saved(ToyGame):
    """A game that shows all, and can be saved."""

    @property
    def history(self) -> tuple[str, ...]:
        return ("look",)

    def state(self) -> dict[str, Any]:
        return {}

    def save(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def restore(self, saved: dict[str, Any]) -> Observation:
        self.__dict__ = copy.deepcopy(saved)
        return self._observation("")


def test_teachers_play_a_game_with_notes_as_they_play_the_game() -> None:
    memory, toy = Memory(_played()), games.make("toy")
    protocols = (HasGold, CanRehearse, HasWords, CanAdvise, CanPlan, SeesAll)
    for game in (toy, _Saved(), Guarded(ToyGame())):
        told: Any = Remembering(game, memory)
        for other in (told, copy.deepcopy(told)):
            assert [isinstance(other, kind) for kind in protocols] == [isinstance(game, kind) for kind in protocols]
            for name in ("gold", "gold-pruned"):
                played, plain = (play(one, tiny.tasks(3)[2], teacher(name, one)) for one in (other, toy))
                assert [turn.action for turn in played.turns] == [turn.action for turn in plain.turns]
                assert all("Before: " in turn.observation.goal for turn in played.turns)


def test_a_saved_point_is_gone_back_to_with_its_notes() -> None:
    told, (one, *_, other) = Remembering(_Saved(), Memory(_played()), own=False), tiny.tasks(8)
    first = told.reset(one)
    told.step("look")
    saved = told.save()
    assert told.reset(other).goal != first.goal
    assert told.restore(saved).goal == told.step("look")[0].goal == first.goal


def test_a_remembered_demonstration_is_what_the_game_would_have_shown() -> None:
    memory, task = Memory(_played()), tiny.tasks(3)[2]
    told = Remembering(games.make("toy"), memory, own=False)
    toy = games.make("toy")
    before = play(toy, task, teacher("gold", toy))
    shown = remembered(before, memory, own=False)
    assert shown.turns[0].observation == told.reset(task)
    assert [turn.action for turn in shown.turns] == [turn.action for turn in before.turns]


def test_notes_are_read_once_and_the_transcript_is_appended_to() -> None:
    memory, policy = Memory(_played()), tiny.policy()
    seats = [Remembering(games.make("toy"), memory) for _ in range(3)]
    episodes = collect(policy, seats, tiny.tasks(5), Decoding(), seed="0", context=768)
    for episode in episodes:
        text = tiny.tokenizer().decode(episode.segments[0].ids)
        assert text.count("Before: ") == 1 and len(episode.segments) == 1
        again = tokenise(episode, policy)
        assert (
            again.segments[0].ids[: episode.turns[-1].state_position + 1]
            == (episode.segments[0].ids[: episode.turns[-1].state_position + 1])
        )


def test_a_game_is_not_told_of_later_folds() -> None:
    """What is trained must not know the games that it is measured on; an evaluation may remember its own fold."""
    test = tiny.tasks(1, "test")[0]
    game = games.make("toy")
    memory = Memory([replace(episode, task=test) for episode in _played(2)])
    for fold in ("train", "dev"):
        with pytest.raises(ConfigError, match=f"a {fold} game would be told of test games"):
            Remembering(game, memory).reset(tiny.tasks(1, fold)[0])
    with pytest.raises(ConfigError, match="would be told"):
        remembered(replace(_played(1)[0], task=tiny.tasks(1)[0]), memory)
    assert "Before:" in Remembering(game, memory).reset(test).goal


def test_other_games_of_the_same_problem_are_its_own_too() -> None:
    """Seed k + 100 of arithmetic poses the problem of seed k."""
    one, other = (replace(tiny.tasks(1)[0], game="arithmetic", seed=seed) for seed in (7, 8))
    episode = _played(1)[0]
    memory = Memory([replace(episode, task=task) for task in (one, other)])
    found = memory.search(episode.turns[0].observation.text, 5, without=replace(one, seed=107, limit=3))
    assert [note.task.seed for note in found] == [8]


def test_games_that_may_be_the_same_are_its_own_too() -> None:
    """Seeds of coin with five rooms make identical games, which begin alike."""
    episode, task = _played(1)[0], replace(tiny.tasks(1)[0], game="coin", params="numLocations=5")
    plays = zip((7, 8), (Outcome.WON, Outcome.LIMIT), strict=True)  # notes that say the same are told once
    memory = Memory([replace(episode, task=replace(task, seed=seed), outcome=ended) for seed, ended in plays])
    begins = episode.turns[0].observation.text
    assert memory.search(begins, 5, without=replace(task, seed=9)) == []
    assert len(memory.search(f"{begins} A door.", 5, without=replace(task, seed=9))) == 2
    assert len(memory.search(begins, 5, without=replace(task, seed=9, params="numLocations=11"))) == 2


def test_what_is_no_memory_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="tuple is no Memory"):
        Remembering(games.make("toy"), ())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="made of episodes, not of a str"):
        Memory("demos.jsonl")  # type: ignore[arg-type]
    for make in (Memory, lambda given: Memories(given, 5)):
        with pytest.raises(ConfigError, match="made of episodes, not of a Episode"):
            make(_played(1)[0])  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="none of these 2 episodes holds its turns"):
            make([replace(episode, turns=()) for episode in _played(2)])
    assert not Memory([replace(_played(1)[0], turns=(), outcome=Outcome.FAILED)])  # one that never began
    with pytest.raises(ConfigError, match="count='2' is not a whole number"):
        Remembering(games.make("toy"), Memory(()), count="2")  # type: ignore[arg-type]
