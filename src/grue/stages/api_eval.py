"""`grue eval --api`: a chat model behind an endpoint plays the games that the run's own policies are measured on.

Games are kept as they end, so an interrupted evaluation goes on with those that are left and pays for none twice. The
usage of each answer is kept as it comes, so that the sum is right however often the evaluation was interrupted.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from grue.api.client import COUNTS, TOKENS, ChatClient
from grue.api.endpoint import Endpoint
from grue.config import Config
from grue.errors import ConfigError
from grue.evaluate.failures import failures_of
from grue.evaluate.summary import summarise, with_problems
from grue.launch import launched
from grue.progress import Progress
from grue.report import html
from grue.stages.announce import tell_adopted
from grue.stages.api_play import play_all
from grue.stages.final import final_results
from grue.stages.session import Session, open_session
from grue.storage import episodes, forms, jsonl
from grue.storage.contents import REPORT, keep_evaluation, read_results
from grue.storage.run import Run
from grue.storage.settled import SettledError
from grue.types import Episode


def evaluate_api(
    out: Path, config: Config, endpoint: Endpoint, *, concurrency: int, say: Progress, again: bool = False
) -> dict[str, Any]:
    """Play the run's evaluation games and add the row to the table. Returns the row, with usage and cost.

    Games that are there count if they were played with the same options, else ConfigError; `again` discards them.
    """
    if launched() > 1:
        raise ConfigError("grue eval --api runs in a single process", hint="leave out accelerate launch or --processes")
    try:
        run = Run(out, config)
    except SettledError as error:  # with --api, --again plays only the games of the chat model again
        raise SettledError(error.message, hint=f"{error.hint}; that is without --api, which comes after") from error
    cfg, name = config.eval, f"api:{endpoint.model}"
    decoding = "greedy" if endpoint.temperature == 0 else "sampled"
    row = f"api-{_file_name(endpoint.model)}-{cfg.fold}-{decoding}"
    file, spent = run.episodes(row), run.out / "api" / f"{row}.jsonl"
    _settle(file, spent)  # they may be as a killed command left them
    if again:  # what was paid for is deleted only when there is something in its place
        for path in (file, spent):
            if path.exists():
                path.replace(_aside(path))
    with run.changed_unless_refused():
        _check_same(spent, endpoint, out)
    tell_adopted(run, say)
    client = ChatClient(endpoint, spent)
    with open_session(run, config, say) as session:
        played = _play_rest(session, client, name, file, spent, concurrency)
        named = with_problems(played, session.problems([episode.task for episode in played]))
        result: dict[str, Any] = {**summarise(named, fold=cfg.fold, bootstrap=cfg.bootstrap)}
        result |= {"model": endpoint.model, "temperature": endpoint.temperature, "usage": _total(spent)}
        key = {"policy": name, "fold": cfg.fold, "decoding": decoding}
        table = run.evaluation_file
        keep_evaluation(out, lambda entry: bool(entry["row"] != row))
        jsonl.append(table, [{"row": row, "api": key, "result": result}])
        done = run.is_done("eval")
        if done:
            before = read_results(out) or {}
            # what is said of the machine stays that of the run: a chat model may be asked from another one
            final_results(session, wall_s=before.get("wall_s"), command=before.get("command", ""), earlier=before)
            html.render(out)
    _tell(name, result, say)
    say(f"its row is in {out / REPORT}" if done else f"kept in {table}; grue eval {out} adds the others")
    failures_of(played).warn(row, say)
    usage = result["usage"]
    if usage["empty"]:
        say.warn(
            f"{usage['empty']} of {usage['requests']} replies of {endpoint.model} were empty, which counts as an "
            f"invalid action; {usage['cut']} were cut off at --api-max-tokens {endpoint.max_tokens}"
        )
    return result


def _play_rest(
    session: Session, client: ChatClient, name: str, file: Path, spent: Path, concurrency: int
) -> list[Episode]:
    """Play the games that `file` lacks, and return all."""
    cfg = session.config.eval
    tasks = session.tasks(cfg.fold, cfg.games)
    known = {episode.task for episode in episodes.read(file, missing_ok=True)}
    left = [task for task in tasks if task not in known]
    with session.say.bar(name, len(tasks), done=len(tasks) - len(left), unit="games") as bar:

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
    return [episode for episode in episodes.read(file, missing_ok=True) if episode.task in wanted]


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
