"""The verbs that come after training: `eval`, `compare`, `track`, `export`, `push`, `report` and `watch`."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grue.cli import common
from grue.cli.common import Again, ConfigFile, Json, Out, PresetName, ProcessCount, Quiet, RunAndSettings, Seed
from grue.cli.perform import perform
from grue.errors import ConfigError, needs
from grue.names import PolicyName, RunFold, TrainingStage
from grue.progress import Progress

if TYPE_CHECKING:
    from grue.api.endpoint import Endpoint


def evaluate(
    context: typer.Context,
    arguments: RunAndSettings = None,
    preset: PresetName = None,
    config: ConfigFile = None,
    out: Out = None,
    seed: Seed = None,
    again: Again = False,
    processes: ProcessCount = 1,
    api: Annotated[
        str | None,
        typer.Option(metavar="URL", help="let a chat model behind this OpenAI-compatible endpoint play instead"),
    ] = None,
    api_model: Annotated[str | None, typer.Option(metavar="NAME", help="which of the endpoint's models")] = None,
    api_concurrency: Annotated[int, typer.Option(min=1, max=256, help="games that wait for answers at once")] = 8,
    api_timeout: Annotated[float, typer.Option(min=1, max=3600, help="seconds to wait for an answer")] = 60.0,
    api_retries: Annotated[int, typer.Option(min=0, max=20, help="how often a failed request is repeated")] = 6,
    api_temperature: Annotated[float, typer.Option(min=0, max=2, help="0 = greedy")] = 0.0,
    api_max_tokens: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="most tokens of a reply, thoughts included")
    ] = 256,
    api_prices: Annotated[
        str | None, typer.Option(metavar="IN,OUT", help="prices per million prompt and completion tokens")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure every policy of a run on test games, and on some train and dev games for comparison.

    With --api a chat model plays the same games, without training. Its key is read from GRUE_API_KEY or OPENAI_API_KEY.
    """

    def work(say: Progress) -> object:
        with common.reading_arguments():
            if api is None and (idle := _given_for_api(context)):
                raise ConfigError(f"without --api there is no effect of {', '.join(idle)}", hint="add --api URL")
            wanted, folder = common.named_run(arguments, preset, config, seed, out)
            if preset is None and config is None:
                common.existing_run(folder)
            settings = {
                "timeout_s": api_timeout,
                "retries": api_retries,
                "temperature": api_temperature,
                "max_tokens": api_max_tokens,
            }
            endpoint = None if api is None else _endpoint(api, api_model, api_prices, **settings)
        if endpoint is not None:
            from grue.stages.api_eval import evaluate_api

            return evaluate_api(folder, wanted, endpoint, concurrency=api_concurrency, say=say, again=again)
        from grue import stages

        return stages.run_stage("eval", wanted, folder, say=say, again=again)

    perform(work, processes=processes, as_json=as_json, quiet=quiet)


def _endpoint(url: str, model: str | None, prices: str | None, **settings: Any) -> Endpoint:
    from grue.api.endpoint import Endpoint

    return Endpoint(
        url=url,
        model=common.required(model, "--api-model", "which of the endpoint's models is to play"),
        key=os.environ.get("GRUE_API_KEY") or os.environ.get("OPENAI_API_KEY") or "",
        prices=None if prices is None else common.prices(prices),
        **settings,
    )


def _given_for_api(context: typer.Context) -> list[str]:
    """The options of the command line that are about a chat model."""
    names = [name for name in context.params if name.startswith("api_")]
    given = [name for name in names if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"]
    return [f"--{name.replace('_', '-')}" for name in given]


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run directories that grue eval has measured")],
    policy: Annotated[
        PolicyName | None,
        typer.Option(help="which policy; default: the furthest-trained that all runs have measured"),
    ] = None,
    fold: Annotated[RunFold | None, typer.Option(help="which games; default: those of the evaluation")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also draw their learning curves: a .svg, .png or .pdf")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare runs: means over training seeds, and differences between settings.

    Runs that differ only in the seed count as trainings of one kind. Compared on the games that all runs finished.
    """

    def work(say: Progress) -> object:
        with common.reading_arguments():
            for run in runs:
                common.existing_run(run)
            if plot is not None:
                from grue.report.comparison import check_figure_path, draw_comparison

                check_figure_path(plot)
        from grue.cli.compare import show
        from grue.evaluate.runs import compare_runs

        result = compare_runs(runs, policy, fold)
        if not as_json:
            show(result, say)
        if plot is not None:
            draw_comparison(result, plot)
            say(f"learning curves: {plot}")
        return result

    perform(work, as_json=as_json, quiet=quiet)


def track(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")],
    tracker: Annotated[Literal["tensorboard", "trackio", "wandb"], typer.Argument(help="which tracker")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Send what a run has measured to an experiment tracker, except what has already been sent.

    A run that is started with track=TRACKER sends it as it goes.
    """

    def work(say: Progress) -> object:
        with common.reading_arguments():
            run_dir = common.existing_run(folder)
            needs(tracker, feature="this")
        from grue.tracking.follow import send_rest

        with redirect_stdout(sys.stderr):  # some trackers print to stdout
            count = send_rest(run_dir, tracker)
        shown = f"; to see them: tensorboard --logdir {run_dir}" if tracker == "tensorboard" else ""
        say(f"{count} rows sent to {tracker}{shown}")
        return {"tracker": tracker, "rows": count}

    perform(work, as_json=as_json, quiet=quiet)


def export(
    folder: common.RunFolder = None,
    what: Annotated[
        Literal["adapter", "merged"], typer.Option(help="the adapter alone, or a whole model with it merged in")
    ] = "merged",
    policy: Annotated[TrainingStage | None, typer.Option(help="whose weights; default: the furthest-trained")] = None,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="folder to write; default: RUN/export-WHAT")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="number format of a merged model's weights")
    ] = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a trained policy as a folder for transformers and peft.

    A recorded game is read with the exported files; a copy that disagrees with the policy is refused.
    """

    def work(say: Progress) -> object:
        with common.reading_arguments():
            run_dir = common.existing_run(folder)
        from grue.stages.export import export_run

        return export_run(run_dir, what=what, policy=policy, dtype=dtype, to=to, say=say)

    perform(work, as_json=as_json, quiet=quiet)


def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="what grue export has written")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="repository on the hub")],
    public: Annotated[bool, typer.Option("--public", help="visible to everybody; private otherwise")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Upload an exported policy to the Hugging Face hub.

    No other verb sends anything anywhere, except `eval --api`, which sends games to the endpoint that it names, and
    trackers that `track` names.
    """

    def work(say: Progress) -> object:
        from grue.stages.push import push as upload

        address = upload(folder, repository, say, public=public)
        say(address)
        return {"address": address}

    perform(work, as_json=as_json, quiet=quiet)


def report(folder: common.RunFolder = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Write a run's report.html from the files of the run."""

    def work(say: Progress) -> object:
        with common.reading_arguments():
            run_dir = common.existing_run(folder)
        from grue.report import html

        page = html.render(run_dir)
        say(str(page))
        return {"report": str(page)}

    perform(work, as_json=as_json, quiet=quiet)


def watch(
    folder: common.RunFolder = None,
    policy: Annotated[
        PolicyName | None,
        typer.Option(help="whose weights play; default: the furthest-trained of the run"),
    ] = None,
    decoding: Annotated[Literal["greedy", "sampled"], typer.Option(help="how actions are chosen")] = "greedy",
    seed: Annotated[int | None, typer.Option(help="seed of the game; default: the report's dev game")] = None,
    delay_s: Annotated[float, typer.Option("--delay", min=0, max=60, help="seconds between two turns")] = 0.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show a trained policy play.

    Each turn shows the probabilities of the actions that the policy weighed.
    """

    def work(say: Progress) -> object:
        from grue.games import fold_of

        with common.reading_arguments():
            if quiet and not as_json:
                raise ConfigError("--quiet leaves nothing to watch", hint="--json prints the game as data")
            run_dir = common.existing_run(folder)
            if seed is not None:
                fold_of(seed)
        from grue import stages

        return stages.watch(run_dir, policy=policy, decoding=decoding, seed=seed, delay_s=delay_s, say=say)

    perform(work, as_json=as_json, quiet=quiet)
