"""Imports go one way, stay light where they must, and the source holds none of the calls that run a stranger's data."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import grue

SOURCE = Path(grue.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py"))

# Each part may import those on the lines above its own, and itself. A module may stand higher than its folder.
LAYERS = (
    {"types", "errors", "names", "version"},
    {"config", "progress", "interrupt", "hardware", "heap", "launch"},
    {"parallel"},
    {"process_group"},
    {"storage"},
    {"tracking"},
    {"games"},
    {"retrieval"},
    {"prompts"},
    {"models"},
    {"engine"},
    {"policy", "api"},
    {"rollout"},
    {"algos"},
    {"evaluate"},
    {"train"},
    {"pretrain"},
    {"report"},
    {"stages"},
    {"wrappers"},
    {"bench"},
    {"experiments"},
    {"cli"},
    {"__init__", "__main__"},  # what the package offers at its top is imported when it is called
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}

HEAVY = ("torch", "transformers", "peft", "accelerate", "py4j", "matplotlib", "gymnasium")


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name below grue) of all of grue that a module imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from ((node.lineno, name.removeprefix("grue.")) for name in names if name.startswith("grue."))


def _part(name: str) -> str:
    """The entry of LAYERS that a dotted name falls under."""
    first, *rest = name.split(".")
    finer = ".".join([first, *rest[:1]])
    return finer if finer in RANK else first


def _name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def test_every_part_has_a_layer() -> None:
    assert {_part(_name(path)) for path in MODULES} <= set(RANK)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_go_one_way(path: Path) -> None:
    part = _part(_name(path))
    for line, name in _imports(path):
        imported = _part(name)
        if imported in RANK and imported != part:  # else a name of grue/__init__.py, or of the same part
            assert RANK[imported] < RANK[part], f"{path}:{line}: {part} must not import {imported}"


def test_no_modules_need_each_other() -> None:
    """Not even by imports inside functions; but for the top of the package, which leads down to `stages.trained`."""
    named = {_name(path).removesuffix(".__init__"): path for path in MODULES}
    needs = {name: {_module(found, named) for _, found in _imports(path)} for name, path in named.items()}
    order = graphlib.TopologicalSorter({name: found - {""} for name, found in needs.items() if name != "__init__"})
    circle: list[str] = []
    try:
        order.prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
    assert not circle


def _module(name: str, known: Mapping[str, Path]) -> str:
    """The module that a dotted name is, or is a name of; "" for the top of the package."""
    return name if name in known else name.rpartition(".")[0]


@pytest.mark.parametrize(
    "module",
    ["grue", "grue.types", "grue.errors", "grue.config", "grue.progress", "grue.storage.run", "grue.storage.episodes"],
)
def test_light_modules_import_nothing_heavy(module: str) -> None:
    _assert_light(f"import {module}")


def test_the_command_line_imports_nothing_heavy_before_a_verb_runs() -> None:
    _assert_light("import grue.cli.main", "numpy", "pydantic", "yaml", "grue.config", "rich.progress")


def _assert_light(statement: str, *also: str) -> None:
    script = f"{statement}; import sys; print(sorted({{*{(*HEAVY, *also)}}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# Calls by which data of a stranger becomes code, or a shell.
BANNED = {"eval", "exec", "torch.load", "pickle.load", "pickle.loads", "yaml.load", "yaml.unsafe_load", "os.system"}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_nothing_runs_what_it_reads(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            assert not names & {"pickle", "dill", "marshal", "shelve"}, f"{path}:{node.lineno}"
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in BANNED, f"{path}:{node.lineno}: {ast.unparse(node.func)}"
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert options.get("trust_remote_code") in (None, "False"), f"{path}:{node.lineno}"
            assert options.get("shell") in (None, "False"), f"{path}:{node.lineno}"
