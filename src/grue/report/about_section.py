"""What the run was: settings, where its time went, command, machine and versions; and the glossary of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grue.report.curves import panels
from grue.report.headline import total_seconds
from grue.report.markup import Child, Html, join, tag
from grue.report.metrics import COLUMNS, METRICS, POLICY_MEANINGS, policy_title
from grue.report.runfiles import RunFiles
from grue.report.tables import folds, rows
from grue.report.text import as_number, duration, number, one_line, redact

_MOST_SETTINGS = 400


def about_section(run: RunFiles) -> Html:
    results = run.results or {}
    return tag(
        "section",
        tag("h2", "About this run"),
        _stages(run),
        _settings(run.config),
        _machine(results),
        id="about",
    )


def _stages(run: RunFiles) -> Html | None:
    """Where the time went."""
    results = run.results or {}
    listed = results.get("stages") or run.seconds
    pairs = [(str(name), as_number(value)) for name, value in listed.items()] if isinstance(listed, dict) else []
    timed = [(name, value) for name, value in pairs if value is not None and value >= 0]
    total = sum(value for _, value in timed)
    if total <= 0:
        return None
    lines = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            tag("td", tag("span", style=f"width:{100 * value / total:.1f}%", class_="fill"), class_="barred"),
            tag("td", duration(value), class_="num"),
            tag("td", f"{100 * value / total:.0f}%", class_="num"),
        )
        for name, value in timed
    ]
    caption = f"{duration(max(total, total_seconds(results) or 0.0))} in all."
    return tag("div", tag("h3", "Where the time went"), tag("table", tag("tbody", *lines), class_="times"),
               tag("p", caption, class_="caption"))  # fmt: skip


def _settings(config: Mapping[str, Any] | None) -> Html | None:
    if config is None:
        return None
    top = [(key, value) for key, value in config.items() if not isinstance(value, dict)]
    stages = [(key, value) for key, value in config.items() if isinstance(value, dict)]
    blocks = [_block("run", top)] if top else []
    blocks += [_block(name, list(_flat(value))) for name, value in stages]
    count = len(top) + sum(len(list(_flat(value))) for _, value in stages)
    title = tag("summary", tag("h3", "Settings"), " ", tag("small", f"all {count} values of config.yaml"))
    return tag("details", title, tag("div", *blocks, class_="settings"))


def _flat(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def _block(name: str, pairs: list[tuple[str, Any]]) -> Html:
    lines = [tag("div", tag("dt", key), tag("dd", plain(value))) for key, value in pairs[:_MOST_SETTINGS]]
    return tag("div", tag("h4", name), tag("dl", *lines))


def plain(value: object) -> str:
    """A setting as people read it, without secrets."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return ", ".join(f"{one_line(str(key), 60)} {plain(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value) or "none"
    return redact(one_line(str(value), 400))


def _machine(results: Mapping[str, Any]) -> Html | None:
    """Command, hardware and versions."""
    parts: list[Html] = []
    command = results.get("command")
    if command:
        parts += [tag("h3", "Command"), tag("pre", redact(str(command)), class_="game command")]
    blocks = [
        _block(name, list(_flat(listed)))
        for name in ("hardware", "versions")
        if isinstance(listed := results.get(name), dict) and listed
    ]
    if blocks:
        parts += [tag("h3", "Machine and versions"), tag("div", *blocks, class_="settings")]
    return tag("div", *parts) if parts else None


def glossary_section(run: RunFiles) -> Html:
    """Every name that the page uses, explained in one sentence each."""
    results = run.results or {}
    policies = list(dict.fromkeys(row.policy for fold in folds(results) for row in rows(results, fold)))
    logged: dict[str, str] = {}
    for stage in run.stages.values():
        grouped, constants = panels(stage)
        found = [panel.metric for group in grouped.values() for panel in group] + [entry.metric for entry in constants]
        logged |= {metric.name: metric.meaning for metric in found}
    order = [name for name in METRICS if name in logged] + sorted(name for name in logged if name not in METRICS)
    parts: list[Html | None] = [
        _words("Policies", [(policy_title(name), _meaning(name)) for name in policies]),
        _words("Columns", list(COLUMNS.items())) if policies else None,
        _words("Logged numbers", [(_name(name), logged[name] or "A number without a description.") for name in order]),
    ]
    return tag("section", tag("h2", "Glossary"), *parts, id="words") if any(parts) else Html()


def _name(metric: str) -> Child:
    """Its title in the figures, and its name in metrics.jsonl."""
    return join([METRICS[metric].title, tag("small", metric)], " ") if metric in METRICS else metric


def _meaning(policy: str) -> str:
    return POLICY_MEANINGS.get(policy.partition(":")[0], "not described")


def _words(title: str, pairs: Sequence[tuple[Child, str]]) -> Html | None:
    if not pairs:
        return None
    lines = [tag("div", tag("dt", name), tag("dd", meaning)) for name, meaning in pairs]
    return tag("div", tag("h3", title), tag("dl", *lines, class_="words"))


def facts_line(run: RunFiles) -> str:
    """The few settings that identify the run."""
    results, config = run.results or {}, run.config or {}
    preset = results.get("preset") or config.get("preset")
    hardware = results.get("hardware")
    facts = [f"preset {plain(preset)}" if preset else ""]
    facts.append(f"seed {plain(config['seed'])}" if "seed" in config else "")
    game = config.get("game")
    if isinstance(game, dict):
        facts.append(plain(game["name"]) if game.get("name") else "")
        facts.append(f"at most {plain(game['limit'])} steps" if game.get("limit") else "")
    model = config.get("model")
    if isinstance(model, dict) and model.get("name"):
        facts.append(f"model {plain(model['name'])}")
    if isinstance(hardware, dict):
        cores, gpus = as_number(hardware.get("cores")), hardware.get("gpus")
        gpu = gpus[0].get("name") if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) else None
        facts.append(plain(gpu) if gpu else f"{number(cores)} CPU cores" if cores is not None else "")
    return " · ".join(fact for fact in facts if fact)
