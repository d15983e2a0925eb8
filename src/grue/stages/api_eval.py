"""`grue eval --api`: a chat model behind an endpoint plays the games that the run's own policies are measured on.

Games are kept as they end, so an evaluation that broke off goes on with those that are left and pays for none twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grue.config import Config
from grue.errors import GameError
from grue.evaluate.summary import summarise
from grue.games import Game
from grue.games.guard import clean_action
from grue.interrupt import Interrupt
from grue.policy.api import ApiPlayer, ChatClient, Endpoint
from grue.progress import Progress
from grue.stages.final import final_results
from grue.stages.session import open_session
from grue.storage import episodes, jsonl
from grue.storage.run import Run, read_results
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
        """Reset the game; an episode only where it fails."""
        self.task, self.turns, self.observation = task, [], None
        try:
            self.observation = self.game.reset(task)
        except GameError as error:
            return self._end(Outcome.FAILED, error.message)
        self.player.start(task, self.observation)
        return None

    def play(self, reply: str) -> Episode | None:
        """Take what the model replied to the game; the episode if that ended it."""
        before, action = self.observation, clean_action(reply)
        assert before is not None
        try:
            self.observation, reward, outcome = self.game.step(action)
        except GameError as error:
            return self._end(Outcome.FAILED, error.message)
        valid = before.actions is None or action in before.actions
        self.turns.append(Turn(observation=before, action=action, reward=reward, valid=valid))
        return None if outcome is None else self._end(outcome)

    def _end(self, outcome: Outcome, error: str = "") -> Episode:
        assert self.task is not None
        return Episode(self.task, self.player.name, tuple(self.turns), outcome, self.observation, error=error)


def play_all(
    client: ChatClient,
    name: str,
    games: Sequence[Game],
    tasks: Sequence[Task],
    on_episode: Callable[[Episode], None],
    interrupt: Interrupt | None = None,
) -> None:
    """Play `tasks`, as many at once as there are `games`. Requests wait in threads, games are stepped in this one."""
    queue = iter(tasks)
    waiting: dict[Future[str], Seat] = {}

    def refill(seat: Seat) -> None:
        for task in queue:
            failed = seat.start(task)
            if failed is None:
                ask(seat)
                return
            on_episode(failed)

    def ask(seat: Seat) -> None:
        assert seat.observation is not None
        waiting[pool.submit(seat.player.act, seat.observation)] = seat

    with ThreadPoolExecutor(len(games), thread_name_prefix="api") as pool:
        try:
            for game in games:
                refill(Seat(game, ApiPlayer(client, name)))
            while waiting:
                done, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    seat = waiting.pop(future)
                    episode = seat.play(future.result())
                    if episode is None:
                        ask(seat)
                    else:
                        on_episode(episode)
                        refill(seat)
                if interrupt is not None:
                    interrupt.check()
        except BaseException:
            client.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def evaluate_api(out: Path, config: Config, endpoint: Endpoint, *, concurrency: int, say: Progress) -> dict[str, Any]:
    """Play the run's evaluation games and add the row to the table. Returns the row, with usage and cost."""
    run = Run(out, config)
    cfg, name = config.eval, f"api:{endpoint.model}"
    decoding = "greedy" if endpoint.temperature == 0 else "sampled"
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", endpoint.model)
    row = f"api-{slug}-{cfg.fold}-{decoding}"
    file, spent = run.episodes(row), run.out / "api" / f"{row}.jsonl"
    client = ChatClient(endpoint)
    with open_session(run, config, say) as session:
        tasks = session.tasks(cfg.fold, cfg.games)
        known = {episode.task for episode in episodes.read(file)}
        left = [task for task in tasks if task not in known]
        with say.bar(name, len(tasks), done=len(tasks) - len(left), unit="games") as bar:

            def keep(episode: Episode) -> None:
                episodes.append(file, [episode])
                bar.advance()

            try:
                if left:
                    games = session.games(min(concurrency, len(left)))
                    play_all(client, name, games, left, keep, session.interrupt)
            finally:  # what was paid for counts, however it ended
                if client.usage.requests:
                    jsonl.append(spent, [client.usage.to_dict(endpoint.prices)])
        wanted = set(tasks)
        played = [episode for episode in episodes.read(file) if episode.task in wanted]
        result: dict[str, Any] = {**summarise(played, fold=cfg.fold, bootstrap=cfg.bootstrap, seed=config.seed)}
        result |= {"model": endpoint.model, "temperature": endpoint.temperature, "usage": _total(spent)}
        key = {"policy": name, "fold": cfg.fold, "decoding": decoding}
        table = run.out / "evaluation.jsonl"
        jsonl.keep(table, lambda entry: entry.get("row") != row)
        jsonl.append(table, [{"row": row, "api": key, "result": result}])
        if run.is_done("eval"):
            before = read_results(out) or {}
            final_results(session, wall_s=before.get("wall_s"), command=before.get("command", ""))
    say(f"{name}: success {result['success'] or 0:.1%}, {result['usage']}")
    return result


def _total(spent: Path) -> dict[str, Any]:
    """Usage of all commands together; the cost is unknown if it is unknown for any of them."""
    rows = [row for _, row in jsonl.read(spent)]
    names = ("requests", "retries", "prompt_tokens", "completion_tokens", "seconds")
    total: dict[str, Any] = {key: sum(row[key] for row in rows) for key in names}
    costs = [row["cost"] for row in rows]
    return {**total, "cost": None if None in costs or not costs else round(sum(costs), 6)}
