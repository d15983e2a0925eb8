"""The engine of ALFWorld's text games, which is TextWorld's for PDDL, without the work that it repeats.

It writes its texts with a grammar whose expressions it parses at each use, and deep-copies what it only reads: together
that is nine tenths of a step. Here equal expressions are parsed once, and a copied context holds the same values.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

# Engines that no game is using. Each has its own copy of the planner's library. Once one has been unloaded, the process
# crashes when the next is loaded, so none ever is.
_idle: list[Any] = []


def borrow() -> Any:
    """An engine, which names things "cabinet 1" where the data has coordinates."""
    return _idle.pop() if _idle else _made()


def give_back(engine: Any) -> None:
    """Make an engine available to the next game."""
    _idle.append(engine)


@cache
def logic() -> tuple[str, str]:
    """(domain, grammar of the texts), both from the package.

    A game file has a grammar too, which is not used: it holds Python expressions, and the engine evaluates them.
    """
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    return Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8"), Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8")


def _made() -> Any:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    _quicken()
    return AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True, facts=False)))


@cache
def _quicken() -> None:
    """Patch the libraries, once, so that they do not repeat work. The texts stay the same, letter by letter."""
    import fast_downward
    from textworld import logic as facts
    from textworld.envs.pddl import textgen as texts

    fast_downward.pddl2sas = lru_cache(maxsize=16)(fast_downward.pddl2sas)  # called four times to start a problem
    for parser in (facts._PARSER, texts._PARSER):
        parser.parse = lru_cache(maxsize=4_000)(parser.parse)  # trees are only read: each use makes its own symbols
    texts.copy_context = _copied


def _copied(context: dict[str, Any]) -> dict[str, Any]:
    """The engine adds to `variables` and `mapping`, and changes none of their values."""
    return context | {"variables": dict(context["variables"]), "mapping": dict(context["mapping"])}
