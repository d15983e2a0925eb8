"""`grue`: the verbs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from grue.cli import common, epilogs, model_verbs, research_verbs
from grue.cli.common import (
    Again,
    ConfigFile,
    Json,
    Out,
    PresetAndSettings,
    PresetName,
    ProcessCount,
    Quiet,
    RunAndSettings,
    Seed,
)
from grue.cli.perform import perform, print_json
from grue.errors import ConfigError
from grue.names import StageName, TrainingStage
from grue.progress import Progress
from grue.version import __version__

if TYPE_CHECKING:
    from grue.config import Config

app = typer.Typer(
    name="grue",
    help="Train language-model policies for text games. Begin with `grue doctor`, then `grue run`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the `grue` command."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # games and models print characters that an old code page lacks
            stream.reconfigure(errors="backslashreplace")
    _refuse_deleted_folder()
    _refuse_empty(sys.argv[1:])
    _refuse_dashes(sys.argv[1:])
    app(prog_name="grue")


def _refuse_deleted_folder() -> None:
    """Exit where the current folder has been deleted: libraries would say something else about it."""
    try:
        Path.cwd()
    except FileNotFoundError:
        _refuse("the current folder no longer exists", "cd to one that does")


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Exit where an argument is empty: as a path it would be the current folder, which --again may clear."""
    for before, argument in pairwise(["grue", *arguments]):
        if not argument.strip() or (argument.startswith("--") and argument.endswith("=")):
            where = argument if argument.strip() else f"{before} ''"
            _refuse(f"one of the arguments is empty: {where}", "is a variable of a script not set?")


def _refuse_dashes(arguments: Iterable[str]) -> None:
    """Exit where a setting is given as an option: the parser would only say that there is no such option."""
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and "." in name and name.replace(".", "_").isidentifier():
            _refuse(
                f"{argument} is not an option: settings have no dashes", f"{name}={value or 'VALUE'}, after the verb"
            )


def _refuse(problem: str, hint: str) -> NoReturn:
    """Exit as for wrong usage, before the arguments are parsed."""
    print(f"error: {problem}\nhint: {hint}", file=sys.stderr)
    raise SystemExit(2)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"grue {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    pass


@app.command("run", epilog=epilogs.PRESETS)
def run(
    arguments: PresetAndSettings = None,
    preset: PresetName = None,
    config: ConfigFile = None,
    out: Out = None,
    seed: Seed = None,
    again: Again = False,
    processes: ProcessCount = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Do everything, from demonstrations to report.

    Demonstrations, fine-tuning, DAgger if asked for, PPO, evaluation, report. The same command resumes an unfinished
    run where it stopped.
    """

    def work(say: Progress) -> object:
        with common.reading_arguments():
            name, settings = common.split(arguments, "a preset")
            if preset is None:
                chosen, where = common.preset_or_run(name, out)
            else:
                chosen, where = preset, common.run_folder(name, out)
            wanted, folder = common.settle(chosen, settings, config, seed, where)
        from grue import stages

        return stages.run_all(wanted, folder, say=say, again=again)

    perform(work, processes=processes, as_json=as_json, quiet=quiet)


def _perform_stage(
    name: StageName,
    read: Callable[[], tuple[Config, Path]],
    *,
    again: bool,
    processes: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """One stage, with the configuration and the run directory that `read` finds in the arguments."""

    def work(say: Progress) -> object:
        with common.reading_arguments():
            wanted, folder = read()
        from grue import stages

        return stages.run_stage(name, wanted, folder, say=say, again=again)

    perform(work, processes=processes, as_json=as_json, quiet=quiet)


@app.command("demos", epilog=epilogs.TEACHERS)
def demos(
    arguments: RunAndSettings = None,
    teacher: Annotated[
        str | None, typer.Option(metavar="NAME", help="who plays, of the list below; the same as demos.teacher=NAME")
    ] = None,
    preset: PresetName = None,
    config: ConfigFile = None,
    out: Out = None,
    seed: Seed = None,
    again: Again = False,
    processes: ProcessCount = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Record the teacher's games. Creates a run directory if there is none."""
    chosen = [*(arguments or []), *([f"demos.teacher={teacher}"] if teacher else [])]
    read = partial(common.named_run, chosen, preset, config, seed, out)
    _perform_stage("demos", read, again=again, processes=processes, as_json=as_json, quiet=quiet)


def _add_stage_verb(name: TrainingStage, help_text: str) -> None:
    def verb(
        arguments: RunAndSettings = None,
        preset: PresetName = None,
        config: ConfigFile = None,
        out: Out = None,
        seed: Seed = None,
        again: Again = False,
        processes: ProcessCount = 1,
        as_json: Json = False,
        quiet: Quiet = False,
    ) -> None:
        read = partial(common.begun_run, arguments, preset, config, seed, out)
        _perform_stage(name, read, again=again, processes=processes, as_json=as_json, quiet=quiet)

    app.command(name, help=help_text)(verb)


_add_stage_verb("sft", "Fine-tune the model on the demonstrations.")
_add_stage_verb(
    "dagger",
    "Let the policy play, and learn what a teacher would have done.\n\n"
    "Settings: dagger.rounds, which is 0 unless it is set; dagger.teacher, optimal (the default) or explore.",
)
_add_stage_verb("ppo", "Let the fine-tuned policy play, and learn from its own games.")
app.command("eval")(model_verbs.evaluate)
app.command("compare")(model_verbs.compare)
app.command("track")(model_verbs.track)
app.command("export")(model_verbs.export)
app.command("push")(model_verbs.push)
app.command("report")(model_verbs.report)
app.command("watch")(model_verbs.watch)


@app.command("play")
def play(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PRESET|GAME|KEY=VALUE",
            help="a preset, as grue run --help lists, default: cooking16; or a game; settings such as game.limit=50",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="seed of the game: train 0-999, dev 10000-10999, test 20000-20999", metavar="N")
    ] = 0,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="append the game to a JSONL file of episodes")
    ] = None,
) -> None:
    """Play a game yourself.

    Choose an action by its number or type it; quit or Ctrl-D leaves.
    """

    def work(say: Progress) -> object:
        from grue.cli.play import play_human, what_to_play

        with common.reading_arguments():
            name, settings = common.split(arguments, "a preset or game")
            task, game_config = what_to_play(name, settings, seed)
        return play_human(task, game_config, say, record=record)

    perform(work)


@app.command("doctor")
def doctor(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings of the run that --model is estimated for")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="estimate the memory that a run with this model needs")
    ] = None,
    preset: PresetName = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="folder of runs whose disk is checked; default: runs")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what is installed, what works and what is missing.

    Starts a game, checks Java, cores, memory and GPU, and lists what each extra would add.
    """

    def work(say: Progress) -> object:
        from grue.cli.doctor import check_model, examine, show, what_to_estimate

        with common.reading_arguments():
            config = what_to_estimate(settings, model, preset)
        findings = examine(out or Path("runs"), None if config is None else check_model(config))
        if as_json:
            print_json(findings)
        else:
            show(findings, say)
        if not findings["ok"]:
            raise typer.Exit(1)
        return None

    perform(work, as_json=as_json)


@app.command("check-game")
def check_game(
    arguments: Annotated[
        list[str], typer.Argument(metavar="MODULE:CLASS|GAME|KEY=VALUE", help="a game, and its parameters")
    ],
    games: Annotated[int, typer.Option(min=1, max=1000, help="games of each fold to check")] = 5,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check that a game keeps the contract.

    Same seed same text, the step limit, outcomes, rewards, seeds outside their fold, closing twice.
    """

    def work(say: Progress) -> object:
        from grue.cli.check import check

        with common.reading_arguments():
            name, settings = common.split(arguments, "a game")
            if name is None:
                raise ConfigError("no game is named", hint="grue check-game my_module:MyGame")
        return check(name, settings, games, say)

    perform(work, as_json=as_json, quiet=quiet)


app.command("pretrain")(research_verbs.pretrain)
app.command("experiment", epilog=f"{epilogs.CONTRASTS}\n\n{epilogs.SIZES}")(research_verbs.experiment)
app.command("bench")(research_verbs.bench)
