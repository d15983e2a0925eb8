"""Games that a chat model plays: many at once, their requests wait in threads, and one thread steps all games."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from grue.api.client import ChatClient, RefusedError
from grue.api.player import ApiPlayer
from grue.errors import GameError
from grue.games import Game
from grue.games.play import Recorder
from grue.interrupt import Interrupt
from grue.types import Episode, Task


@dataclass
class ApiGame:
    """One game in progress."""

    game: Game
    player: ApiPlayer
    recorder: Recorder = field(init=False)

    def start(self, task: Task) -> Episode | None:
        """Reset the game; returns an episode only if that fails."""
        self.recorder = Recorder(self.game, task, self.player.name)
        try:
            self.player.start(task, self.recorder.reset(task))
        except GameError as error:
            return self.recorder.failed(error)
        return None


@dataclass
class _Round:
    """Games in progress."""

    client: ChatClient
    at_once: int
    queue: Iterator[Task]
    pool: ThreadPoolExecutor
    on_episode: Callable[[Episode], None]
    waiting: dict[Future[str], ApiGame] = field(default_factory=dict)
    refused: list[Episode] = field(default_factory=list)  # not yet clear whether the endpoint fails, or these games
    answers: int = 0  # since the last refusal
    ending: bool = False  # no more requests are to be made

    def refill(self, game: ApiGame) -> None:
        """Start the next game that can be started."""
        for task in () if self.ending else self.queue:
            failed = game.start(task)
            if failed is None:
                self._ask(game)
                return
            self.on_episode(failed)

    def take(self, future: Future[str]) -> BaseException | None:
        """Go on with the game whose answer has come; returns the error, if one came instead that ends all games."""
        game = self.waiting.pop(future)
        error = future.exception()
        if isinstance(error, RefusedError):
            self.refused.append(game.recorder.failed(error))
            self.answers = 0
            self.refill(game)
            many = len(self.refused) > (self.at_once + 1 if self.waiting else 1)
            return error if many or not self.client.usage.requests else None
        if error is not None:
            return error
        episode = game.recorder.play(future.result())
        self.answers += 1
        if self.answers > self.at_once:
            self.keep_refused()
        if episode is None:
            self._ask(game)
        else:
            self.on_episode(episode)
            self.refill(game)
        return None

    def keep_refused(self) -> None:
        """Count refused games as failed, as the endpoint answers in others."""
        for failed in self.refused:
            self.on_episode(failed)
        self.refused.clear()

    def _ask(self, game: ApiGame) -> None:
        if self.ending:
            return
        self.waiting[self.pool.submit(game.player.act, game.recorder.observation)] = game


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
                play.refill(ApiGame(game, ApiPlayer(client, name)))
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
