"""The cells of the experiment and how each is played. Everything here is requested by name and played at most once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from grue.errors import DataError
from grue.evaluate.evaluate import evaluate
from grue.evaluate.summary import with_problems
from grue.experiments.cells import Cell, Cells, digest, from_episodes
from grue.experiments.eval_gap.arms import PPOArm, Weights, measured, train_sft_arm
from grue.experiments.eval_gap.defects import Arm, ExtraStep, cut_at_limit, top_k_policy
from grue.experiments.eval_gap.player import Answer, choosing, play_prompts, writing
from grue.experiments.eval_gap.prompts import Style
from grue.experiments.eval_gap.settings import Settings
from grue.games import Game
from grue.games.configured import fold_tasks
from grue.games.play import play
from grue.games.teachers import teacher
from grue.models.learned import copy_of_learned
from grue.policy.decision import Decoding
from grue.policy.policy import Policy
from grue.storage import episodes as stored_episodes
from grue.types import Episode, Task

if TYPE_CHECKING:
    from grue.stages.session import Session

UNSEEN_LAYOUTS = 900_000  # start in the pretrain fold: beyond the games that the embedded base was made from


@dataclass
class Measure:
    """The run that is examined, and the cells measured so far."""

    session: Session
    size: Settings
    cells: Cells
    weights: Weights  # of the examined policy
    _loaded: str = field(default="", init=False)

    def tasks(self, fold: str, count: int) -> list[Task]:
        """Tasks spread over a fold; for "pretrain": train recipes in layouts that nothing was trained on."""
        if fold != "pretrain":
            return self.session.tasks(fold, count)
        return fold_tasks(self.session.config.game, fold, count, UNSEEN_LAYOUTS)

    def played(self, fold: str = "", *, greedy: bool = True) -> Cell:
        """The repaired pipeline."""
        fold = fold or self.size.fold

        def run(policy: Policy, tasks: Sequence[Task]) -> list[Episode]:
            episodes = evaluate(policy, self._seats(tasks), tasks, self._decoding(greedy), context=self._context)
            began_anew = sum(len(episode.segments) > 1 for episode in episodes)
            if began_anew:
                self.session.say.warn(
                    f"{began_anew} of {len(episodes)} {fold} games do not fit model.context={self._context}: there the "
                    "policy begins a new transcript, while prompts made anew at each step lose their oldest steps. "
                    "Contrasts with such prompts (window, retokenised, free writing) show that difference, too"
                )
            return episodes

        return self._cell(f"{'greedy' if greedy else 'sampled'}-{fold}", fold, {"greedy": greedy}, run)

    def extra_step(self) -> Cell:
        def run(policy: Policy, tasks: Sequence[Task]) -> list[Episode]:
            seats = [ExtraStep(game) for game in self._seats(tasks)]
            return evaluate(policy, seats, tasks, Decoding(greedy=True), context=self._context)

        return self._cell("extra-step", self.size.fold, {"greedy": True}, run)

    def top_k_choice(self) -> Cell:
        def run(policy: Policy, tasks: Sequence[Task]) -> list[Episode]:
            cut = top_k_policy(policy.model, policy.encoder, self.size.top_k)
            return evaluate(cut, self._seats(tasks), tasks, self._decoding(greedy=False), context=self._context)

        return self._cell("sampled-top-k", self.size.fold, {"top_k": self.size.top_k}, run)

    def prompted(self, name: str, style: Style) -> Cell:
        """Greedy choice with prompts of `style`."""
        return self._prompted(name, style, {}, lambda policy: choosing(policy, Decoding(greedy=True)))

    def written(self, name: str, *, greedy: bool, top_k: int = 0, style: Style | None = None) -> Cell:
        """Actions written freely over the whole vocabulary."""
        made = {"written": True, "greedy": greedy, "top_k": top_k, "answer_tokens": self.size.answer_tokens}
        most = self.size.answer_tokens
        return self._prompted(
            name,
            style or Style(),
            made,
            lambda policy: writing(policy, self._decoding(greedy), top_k=top_k, most=most),
        )

    def gold_steps(self, fold: str) -> dict[int, int]:
        """Seed -> steps of the game's own solution, however many it takes; {} where a game has none."""
        tasks = self.tasks(fold, self.size.games)
        (game,) = self.session.games(1)
        if not self.session.solves_itself:
            return {}

        def run() -> Cell:
            return from_episodes(
                f"gold-{fold}", [play(game, t, teacher("gold", game), record_limit=100) for t in tasks]
            )

        made = {"game": self._game, "fold": fold, "games": len(tasks), "player": "gold"}
        return self.cells.get(f"gold-{fold}", made, run).steps

    def sft_arm(self, seed: int, *, cut: bool) -> Cell:
        """Greedy success after SFT on whole demonstrations, or on the same ones cut at the limit."""
        name = f"arm-sft-{'cut' if cut else 'whole'}-{seed}"
        config = self.session.config
        made = {**self._arm_made, "cut": cut, "seed": seed, "sft": config.sft.model_dump()}
        made |= {"demos": config.demos.model_dump(), "demos_seed": config.seed}

        def run() -> Cell:
            self.session.load("base")
            model = train_sft_arm(self.session, self._current(), self._demonstrations(cut=cut), self.size, seed)
            return from_episodes(name, measured(self.session, model, self._arm_tasks, greedy=True))

        return self.cells.get(name, made, run)

    def ppo_arm(self, arm: Arm, seed: int) -> Cell:
        """Greedy success after a short PPO training; sampled success, metrics and the curve are in `extra`."""
        made = self._ppo_made(arm, seed)

        def run() -> Cell:
            self.session.load("sft")
            curve: dict[str, Any] = {}

            def watch(iteration: int, policy: Policy) -> None:
                tasks = self._arm_tasks
                episodes = evaluate(policy, self._seats(tasks), tasks, Decoding(greedy=True), context=self._context)
                curve[str(iteration)] = {str(e.task.seed): e.won for e in episodes}

            trainer = PPOArm(self.session, arm, self.size, seed, self._current())
            model, rows = trainer.train(watch if arm == Arm() else None)
            sampled = measured(self.session, model, self._arm_tasks, greedy=False)
            last = [row["success"] for row in rows[-3:]]
            return from_episodes(
                f"arm-{arm.name}-{seed}",
                measured(self.session, model, self._arm_tasks, greedy=True),
                sampled=float(np.mean([episode.won for episode in sampled])),
                collection=float(np.mean(last)),  # sampled train success of the last three iterations
                metrics=rows,
                curve=curve,
            )

        return self.cells.get(f"arm-{arm.name}-{seed}", made, run)

    def curve(self, seed: int) -> dict[int, Cell]:
        """Iteration -> greedy evaluation of the repaired arm."""
        arm = self.ppo_arm(Arm(), seed)
        curve = {int(n): {int(s): bool(w) for s, w in won.items()} for n, won in arm.extra["curve"].items()}
        return {n: Cell(f"curve-{n}", won, {}, {}, game=arm.game, alike=arm.alike) for n, won in curve.items()}

    def _ppo_made(self, arm: Arm, seed: int) -> dict[str, Any]:
        sizes = self.size.model_dump(include={"iterations", "episodes", "minibatches", "kl_coef", "curve_every"})
        if arm.adapter:
            sizes |= self.size.model_dump(include={"lora_rank", "lora_alpha", "lora_rate", "dropout"})
        if arm.top_k:
            sizes["top_k"] = self.size.top_k
        return {
            **self._arm_made,
            "arm": asdict(arm),
            "seed": seed,
            "sizes": sizes,
            # off in arms: those excluded are unknown to older cells, the one added to newer settings
            "ppo": {**self.session.config.ppo.model_dump(exclude={"valid_coef", "state_weight"}), "plays_kept": 0},
            "start": self._stage_digest("sft"),
        }

    def _demonstrations(self, *, cut: bool) -> list[Episode]:
        whole: list[Episode] = []
        for name in ("demos", "replays"):
            file = self.session.run.episodes(name)
            if file.exists():
                share = self.size.sft_games * (1 if name == "demos" else self.session.config.demos.replays)
                whole += list(stored_episodes.read(file))[:share]
        return [cut_at_limit(episode) for episode in whole] if cut else whole

    def _prompted(self, name: str, style: Style, made: dict[str, Any], answer: Callable[[Policy], Answer]) -> Cell:
        def run(policy: Policy, tasks: Sequence[Task]) -> list[Episode]:
            return play_prompts(policy, self._seats(tasks), tasks, style, answer(policy), context=self._context)

        return self._cell(name, self.size.fold, {**made, "style": asdict(style)}, run)

    def _cell(
        self,
        name: str,
        fold: str,
        made: dict[str, Any],
        run: Callable[[Policy, Sequence[Task]], list[Episode]],
    ) -> Cell:
        self.session.interrupt.check()
        weights = digest(self.weights)

        def fill() -> Cell:
            if self._stage_digest(self.size.policy) != weights:
                raise DataError(
                    f"{self.session.run.out} has other {self.size.policy} weights than when this command began",
                    hint="wait until the run is done, then give the command again",
                )
            tasks = self.tasks(fold, self.size.games)
            self.session.say(f"{name}: {len(tasks)} games of {fold}")
            episodes = with_problems(run(self.session.policy(), tasks), self.session.problems(tasks))
            lengths = [len(segment.ids) for episode in episodes for segment in episode.segments[-1:]]
            return from_episodes(name, episodes, tokens_median=float(np.median(lengths)) if lengths else 0.0)

        return self.cells.get(
            name,
            {
                **made,
                "game": self._game,
                "fold": fold,
                "games": self.size.games,
                "context": self._context,
                "weights": weights,
                **self._playing,
            },
            fill,
        )

    def _seats(self, tasks: Sequence[Task]) -> list[Game]:
        return self.session.games(min(self.session.config.eval.slots, len(tasks)))

    def _current(self) -> Weights:
        """A copy of the weights that the session's model has now."""
        return copy_of_learned(self.session.model)

    def _stage_digest(self, policy: str) -> str:
        self.session.load(policy)
        return digest(self._current())

    @property
    def _arm_tasks(self) -> list[Task]:
        return self.session.tasks(self.size.fold, self.size.arm_games)

    @property
    def _context(self) -> int:
        return self.session.config.model.context

    @property
    def _game(self) -> dict[str, Any]:
        return self.session.config.game.model_dump(exclude={"java", "read_timeout_s"})

    @property
    def _arm_made(self) -> dict[str, Any]:
        size = self.size.model_dump(include={"fold", "arm_games", "sft_games", "sft_batch"})
        return {"game": self._game, "model": self.session.config.model.model_dump(), **size, **self._playing}

    def _decoding(self, greedy: bool) -> Decoding:
        return Decoding(greedy, self.session.config.sampling_temperature)

    @property
    def _playing(self) -> dict[str, Any]:
        """Part of what cells are named by. What older cells have in common is left out: they keep their names."""
        config = self.session.config
        kind = {} if config.policy.kind == "choose" else {"kind": config.policy.kind, "min_p": config.policy.min_p}
        return kind if config.sampling_temperature == 1 else {**kind, "temperature": config.sampling_temperature}
