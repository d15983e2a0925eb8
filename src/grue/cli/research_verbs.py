"""Verbs for questions and for work on grue itself: `pretrain`, `experiment`, `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grue.cli import common
from grue.cli.common import Json, Quiet
from grue.cli.perform import perform
from grue.progress import Progress


def pretrain(
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder of the base and corpus")] = Path("runs/pretrain"),
    games: Annotated[int, typer.Option(min=1, max=250_000, help="games in the first phase")] = 40_000,
    passes: Annotated[float, typer.Option(min=0.01, help="passes over the games of each phase")] = 2.0,
    shuffled_games: Annotated[int, typer.Option(min=1, max=150_000, help="games in the second phase")] = 32_000,
    family_games: Annotated[int, typer.Option(min=0, help="games of the other families in the second phase")] = 9_000,
    vocabulary: Annotated[int, typer.Option(min=400, max=65_000, help="size of the tokenizer's vocabulary")] = 1536,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 = torch's choice")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the embedded base model again. Takes more than two hours on two cores; it ships with the package."""

    def work(say: Progress) -> object:
        from grue.pretrain.main import main as make_base

        folder = make_base(
            out,
            games=games,
            shuffled_games=shuffled_games,
            family_games=family_games,
            passes=passes,
            vocabulary=vocabulary,
            threads=threads,
            say=say,
        )
        return {"base": str(folder)}

    perform(work, as_json=as_json, quiet=quiet)


def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="which experiment: eval-gap or second-visit")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|KEY=VALUE",
            help="run directories, default: the one in runs/ last written to; for several seeds also the means "
            "over them; sizes such as games=200 or iterations=10",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="contrasts of the list below, joined by commas; default: all"),
    ] = None,
    training: Annotated[
        bool, typer.Option(help="include contrasts that need short trainings of their own, which take longest")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="where results, or means of several runs, go; default: RUN/experiments/NAME"),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answer a question by measurements on a run.

    eval-gap: why a policy does worse in evaluation than in collection, one suspect at a time.

    second-visit: does a note about an earlier visit to a game help? Policies trained with notes and without.

    Both go on where they stopped.
    """

    def work(say: Progress) -> object:
        from grue import experiments

        with common.reading_arguments():
            experiments.check_name(name)
            named, settings = common.split_many(arguments)
            runs = [common.existing_run(Path(run)) for run in named] or [common.existing_run(None)]
            prepared = experiments.prepare(name, runs, settings, only=_names(only), training=training, out=out)
        return prepared(say)

    perform(work, as_json=as_json, quiet=quiet)


def _names(joined: list[str] | None) -> list[str]:
    return [name.strip() for names in joined or () for name in names.split(",") if name.strip()]


def bench(
    name: Annotated[str, typer.Argument(help="rollout, update, score, turn-cost, memory or grpo")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a benchmark against a named baseline and print the ratio."""

    def work(say: Progress) -> object:
        from grue import bench as benchmarks

        with common.reading_arguments():
            benchmarks.check_name(name)
        result = benchmarks.main(name, say=say)
        if not as_json:
            say(f"{name}: ratio {result['ratio']:.3g}  ({result['same']})", style="bold")
            say(f"  ours      {result['ours']}")
            say(f"  baseline  {result['baseline']}")
        return result

    perform(work, as_json=as_json, quiet=quiet)
