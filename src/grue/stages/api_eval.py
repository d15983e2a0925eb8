"""`grue eval --api`: a chat model behind an endpoint plays the games that the run's own policies are measured on.

Games are kept as they end, so an interrupted evaluation goes on with those that are left and pays for none twice. The
usage of each answer is kept as it comes, so that the sum is right however often the evaluation was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from grue.config import Config
from grue.errors import ConfigError, GameError
from grue.evaluate.summary import summarise
from grue.games import Game
from grue.games.guard import as_played
from grue.interrupt import Interrupt
from grue.launch import launched
from grue.policy.api import ApiPlayer
from grue.policy.chat_client import COUNTS, TOKENS, ChatClient, RefusedError
from grue.policy.endpoint import Endpoint
from grue.progress import Progress
from grue.report import html
from grue.stages.final import final_results, warn_of_failed
from grue.stages.session import open_session
from grue.storage import episodes, forms, jsonl
from grue.storage.contents import keep_evaluation, read_results
from grue.storage.run import Run
from grue.types import Episode, Observation, Outcome, Task, Turn


@dataclass
class Seat:
    """One game in progress."""

    game: Game
    player: ApiPlayer
    task: Task | None = None
    observation: Observation | None = None
    turns: list[Turn] = field(default_factory=list)

    def start(self, task: Task) -> Episode | None:
        """Reset the game; returns an episode only if that fails."""
        self.task, self.turns, self.observation = task, [], None
        try:
            self.observation = self.game.reset(task)
        except GameError as error:
            return self._end(Outcome.FAILED, error.message)
        self.player.start(task, self.observation)
        return None

    def play(self, reply: str) -> Episode | None:
        """Play what the model replied; returns the episode if that ended it."""
        before = self.observation
        assert before is not None
        action = as_played(reply, before.actions)
        try:
            self.observation, reward, outcome = self.game.step(action)
        except GameError as error:
            return self._end(Outcome.FAILED, error.message)
        valid = before.actions is None or action in before.actions
        self.turns.append(Turn(observation=before, action=action, reward=reward, valid=valid))
        return None if outcome is None else self._end(outcome)

    def refused(self, error: RefusedError) -> Episode:
        """The game, as one that failed."""
        return self._end(Outcome.FAILED, error.message)

    def _end(self, outcome: Outcome, error: str = "") -> Episode:
        assert self.task is not None
        return Episode(self.task, self.player.name, tuple(self.turns), outcome, self.observation, error=error)


@dataclass
class _Round:
    """Games in progress. Requests wait in threads; games are stepped in the caller's thread."""

    client: ChatClient
    seats: int
    queue: Iterator[Task]
    pool: ThreadPoolExecutor
    on_episode: Callable[[Episode], None]
    waiting: dict[Future[str], Seat] = field(default_factory=dict)
    refused: list[Episode] = field(default_factory=list)  # by whose fault their request was refused is not known yet
    answers: int = 0  # since the last refusal
    ending: bool = False  # no more requests are to be made

    def refill(self, seat: Seat) -> None:
        """Start the next game that can be started."""
        for task in () if self.ending else self.queue:
            failed = seat.start(task)
            if failed is None:
                self._ask(seat)
                return
            self.on_episode(failed)

    def take(self, future: Future[str]) -> BaseException | None:
        """Go on with the game whose answer has come; returns the error, if one came instead that ends all games."""
        seat = self.waiting.pop(future)
        error = future.exception()
        if isinstance(error, RefusedError):
            self.refused.append(seat.refused(error))
            self.answers = 0
            self.refill(seat)
            many = len(self.refused) > (self.seats + 1 if self.waiting else 1)
            return error if many or not self.client.usage.requests else None
        if error is not None:
            return error
        episode = seat.play(future.result())
        self.answers += 1
        if self.answers > self.seats:
            self.keep_refused()
        if episode is None:
            self._ask(seat)
        else:
            self.on_episode(episode)
            self.refill(seat)
        return None

    def keep_refused(self) -> None:
        """Count refused games as failed, as the endpoint answers in others."""
        for failed in self.refused:
            self.on_episode(failed)
        self.refused.clear()

    def _ask(self, seat: Seat) -> None:
        assert seat.observation is not None
        if self.ending:
            return
        self.waiting[self.pool.submit(seat.player.act, seat.observation)] = seat


def play_all(
    client: ChatClient,
    name: str,
    games: Sequence[Game],
    tasks: Sequence[Task],
    on_episode: Callable[[Episode], None],
    interrupt: Interrupt | None = None,
) -> None:
    """Play `tasks`, as many at once as there are `games`.

    A game in which the endpoint refuses a request has failed if the endpoint then goes on answering in others, with
    more answers than can have been under way. Otherwise the endpoint has failed, and its error ends all games.
    """
    with ThreadPoolExecutor(len(games), thread_name_prefix="api") as pool:
        play = _Round(client, len(games), iter(tasks), pool, on_episode)
        try:
            for game in games:
                play.refill(Seat(game, ApiPlayer(client, name)))
            while play.waiting:
                done, _ = wait(play.waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                # answers that come with an error that ends all are paid for, so they are kept, but no more is asked
                play.ending = any(not isinstance(future.exception(), RefusedError | None) for future in done)
                errors = [error for future in done if (error := play.take(future)) is not None]
                if errors:
                    raise errors[0]
                if interrupt is not None:
                    interrupt.check()
            play.keep_refused()
        except BaseException:
            client.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def evaluate_api(
    out: Path, config: Config, endpoint: Endpoint, *, concurrency: int, say: Progress, again: bool = False
) -> dict[str, Any]:
    """Play the run's evaluation games and add the row to the table. Returns the row, with usage and cost.

    Games that are there count if they were played with the same options, else ConfigError; `again` discards them.
    """
    if launched() > 1:
        raise ConfigError("grue eval --api runs in a single process", hint="leave out accelerate launch or --processes")
    run = Run(out, config)
    cfg, name = config.eval, f"api:{endpoint.model}"
    decoding = "greedy" if endpoint.temperature == 0 else "sampled"
    row = f"api-{_file_name(endpoint.model)}-{cfg.fold}-{decoding}"
    file, spent = run.episodes(row), run.out / "api" / f"{row}.jsonl"
    _settle(file, spent)  # they may be as a killed command left them
    if again:  # what was paid for is deleted only when there is something in its place
        for path in (file, spent):
            if path.exists():
                path.replace(_aside(path))
    _check_same(spent, endpoint, out)
    client = ChatClient(endpoint, spent)
    with open_session(run, config, say) as session:
        tasks = session.tasks(cfg.fold, cfg.games)
        known = {episode.task for episode in episodes.read(file)}
        left = [task for task in tasks if task not in known]
        with say.bar(name, len(tasks), done=len(tasks) - len(left), unit="games") as bar:

            def keep(episode: Episode) -> None:
                episodes.append(file, [episode])
                bar.advance()
                _settle(file, spent)

            try:
                if left:
                    games = session.games(min(concurrency, len(left)))
                    play_all(client, name, games, left, keep, session.interrupt)
            finally:
                _settle(file, spent)
        wanted = set(tasks)
        played = [episode for episode in episodes.read(file) if episode.task in wanted]
        result: dict[str, Any] = {**summarise(played, fold=cfg.fold, bootstrap=cfg.bootstrap, seed=config.seed)}
        result |= {"model": endpoint.model, "temperature": endpoint.temperature, "usage": _total(spent)}
        key = {"policy": name, "fold": cfg.fold, "decoding": decoding}
        table = run.evaluation_file
        keep_evaluation(out, lambda entry: bool(entry["row"] != row))
        jsonl.append(table, [{"row": row, "api": key, "result": result}])
        done = run.is_done("eval")
        if done:
            before = read_results(out) or {}
            final_results(session, wall_s=before.get("wall_s"), command=before.get("command", ""))
            html.render(out)
    _tell(name, result, say)
    say(f"its row is in {out / 'report.html'}" if done else f"kept in {table}; grue eval {out} adds the others")
    warn_of_failed(played, row, say)
    usage = result["usage"]
    if usage["empty"]:
        say.warn(
            f"{usage['empty']} of {usage['requests']} replies of {endpoint.model} were empty, which counts as an "
            f"invalid action; {usage['cut']} were cut off at --api-max-tokens {endpoint.max_tokens}"
        )
    return result


def _tell(name: str, result: dict[str, Any], say: Progress) -> None:
    """Say how well it played, and how many requests and tokens that took."""
    usage, won = result["usage"], "no game was finished"
    if result["success"] is not None:
        won = f"success {result['success']:.1%} of {result['games']} games"
    told = f"{usage['requests']} requests"
    if None not in (usage[key] for key in TOKENS):
        told += f", {usage['prompt_tokens']} and {usage['completion_tokens']} tokens"
    if usage["cost"] is not None:
        told += f", cost {usage['cost']:.4f}"
    say(f"{name}: {won}; {told}")


def _file_name(model: str) -> str:
    """`model` as part of a file's name; two models never share one."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", model)[:100]
    return plain if plain == model else f"{plain}-{sha256(model.encode()).hexdigest()[:6]}"


def _aside(path: Path) -> Path:
    """Where `again` moves a file."""
    return path.with_suffix(path.suffix + ".old")


def _settle(file: Path, spent: Path) -> None:
    """Delete what `again` moved aside if games have come in its place; else put it back, with what was paid since."""
    replaced = file.exists()
    for path in (spent, file):  # the games last: if they are missing, all is put back
        old = _aside(path)
        if not old.exists():
            continue
        if replaced:
            old.unlink()
            continue
        if path == spent:
            jsonl.append(old, [row for _, row in jsonl.read(spent, forms.spent_row) if "requests" in row])
        old.replace(path)


def _check_same(spent: Path, endpoint: Endpoint, out: Path) -> None:
    """ConfigError if games of this row were played with other options; else the options are written down.

    The address may differ: servers move.
    """
    asked = {"temperature": endpoint.temperature, "max_tokens": endpoint.max_tokens}
    before = next((row["asked"] for _, row in jsonl.read(spent, forms.spent_row) if "asked" in row), None)
    if before is None:
        jsonl.append(spent, [{"asked": asked}])
    elif before != asked:
        was, now = (", ".join(f"{key} {value}" for key, value in settings.items()) for settings in (before, asked))
        raise ConfigError(
            f"{out} holds games of {endpoint.model} with {was}, not {now}",
            hint="give the same options, or --again to play all games again",
        )


def _total(spent: Path) -> dict[str, Any]:
    """Usage of all answers together; the cost is unknown if it is unknown for any of them."""
    rows = [row for _, row in jsonl.read(spent, forms.spent_row) if "requests" in row]
    total: dict[str, Any] = {key: sum(row.get(key, 0) for row in rows) for key in (*COUNTS, "seconds")}
    for key in (*TOKENS, "cost"):
        values = [row[key] for row in rows]
        total[key] = None if None in values or not values else round(sum(values), 6)
    total["seconds"] = round(total["seconds"], 3)
    return total
