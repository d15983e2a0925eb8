"""How a verb is performed: its work is done, its result is printed, and its exit code says how it went."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer

from grue.cli import several
from grue.cli.common import UsageError
from grue.errors import ConfigError, GrueError, first_line
from grue.interrupt import Interrupted
from grue.launch import here, is_follower, machines, speaks_here, this_command
from grue.parallel import ProcessLostError, SharedError
from grue.process_group import join, leave
from grue.progress import Progress, clean

_MEMORY_HINT = (
    "in this order: halve sft.micro_tokens, dagger.micro_tokens and ppo.micro_tokens (slower; same result except for "
    "other draws of a dropout), halve dagger.slots, ppo.slots and eval.slots, "
    "model.adapter=lora, model.quantize=nf4, a smaller model"
)


def perform(work: Callable[[Progress], Any], *, processes: int = 1, as_json: bool = False, quiet: bool = False) -> None:
    """Do a verb's `work`, print its result, and exit with the code that says how it went.

    With several `processes`, this one only starts the others, which run this function again.
    """
    try:
        code = several.start(processes)
    except GrueError as error:
        _fail(error, 2, as_json)
    if code is not None:
        raise typer.Exit(code)
    say = Progress(quiet=quiet, silent=is_follower(), stderr=as_json)
    with _warnings_through(say):
        try:
            result = work(say)
            if as_json and result is not None and not is_follower():
                print_json(result)
        except UsageError as problem:
            _fail(problem.error, 2, as_json)
        except GrueError as error:
            _fail(error, 1, as_json)
        except Interrupted as stop:
            if not speaks_here():
                raise typer.Exit(stop.exit_code) from None
            with suppress(OSError):  # the terminal may be what has gone
                print(f"{stop}; everything is saved. To go on:\n  {this_command(but='--again')}", file=sys.stderr)
            raise typer.Exit(stop.exit_code) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                _fail(ConfigError(f"{str(error.filename)[:60]}... is too long for a file name"), 2, as_json)
            if isinstance(error, PermissionError) and error.filename:
                hint = "ls -ld shows who may read it, or the folder it is in"
                _fail(GrueError(f"no permission for {error.filename}", hint=hint), 1, as_json)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            # errors about a run's files are explained where they occur: this one is about what the command prints
            hint = "is the disk full? Free some space, then give the same command again to continue"
            _fail(GrueError(f"the output cannot be written: {error.strerror}", hint=hint), 1, as_json)
        except Exception as error:
            from grue.models.out_of_memory import is_out_of_memory

            if not is_out_of_memory(error):
                raise
            _fail(GrueError(f"out of memory: {clean(first_line(error))}", hint=_MEMORY_HINT), 1, as_json)
        finally:
            leave()


def print_json(result: Any) -> None:
    """One JSON object on one line of stdout."""
    import orjson

    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    text = orjson.dumps(result, default=str, option=option).decode()
    if (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8"):
        text = json.dumps(json.loads(text)) + "\n"  # this escapes what is not ASCII
    sys.stdout.write(text)
    sys.stdout.flush()


def _fail(error: GrueError, code: int, as_json: bool) -> NoReturn:
    """Print message and hint and exit; with GRUE_DEBUG=1 the traceback comes first."""
    for_all = code == 2 or isinstance(error, ProcessLostError | SharedError)
    if speaks_here() or not for_all:  # what all processes of a machine would say, the first one says
        _say(error, code, as_json, alone=not for_all)
    if code == 2 and machines() > 1:  # this may be true of this machine only, and the others would wait
        with suppress(GrueError):
            join(error)
    raise typer.Exit(code)


def _say(error: GrueError, code: int, as_json: bool, *, alone: bool) -> None:
    if os.environ.get("GRUE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    who = f" in {here()}" if alone and is_follower() else ""
    print(f"error{who}: {clean(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {clean(error.hint)}", file=sys.stderr)
    if as_json:
        with suppress(OSError):  # a full disk, already reported on stderr
            print_json({"error": error.message, "hint": error.hint, "exit_code": code})


@contextmanager
def _warnings_through(say: Progress) -> Iterator[None]:
    """Show what the package logs as warnings, above a progress bar rather than through it."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if is_follower():
                print(f"warning: in {here()}: {clean(record.getMessage())}", file=sys.stderr)
            else:
                say.warn(record.getMessage())

    handler = Handler(logging.WARNING)
    # of a follower only what happens to its own games: the leader logs the rest as well
    logger = logging.getLogger("grue.games" if is_follower() else "grue")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
