"""The rooms of the package depend on each other in one direction, and no modules go in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent

API = (
    "stream", "steps", "building", "joining", "timing", "sorting", "scanning", "routing",
    "iterating", "collecting", "writing", "keyed", "starting",
)  # fmt: skip
"""The methods of a stream, and what they share."""

NEVER = {
    "plan": {"kernels", "operators", "io", "box", "spark", "engines", *API},
    "kernels": {"operators", "io", "box", "spark", "engines", *API},
    "operators": {"io", "checkpoints", "box", "spark", "engines", "jobs", *API},
    "watermarks": {"operators", "io", "box", "spark", "engines", "jobs", *API},
    "io": {"operators", "checkpoints", "box", "spark", "engines", "jobs", *API},
    "checkpoints": {"box", "spark", "engines", "apps", "bench", "cli", *API},
    "box": {"spark", "engines", "apps", "bench", "cli", *API},
    "spark": {"box", "engines", "apps", "bench", "cli", *API},
    "apps": {"plan", "kernels", "operators", "io", "box", "spark", "bench", "cli"},
    **{each: {"box", "spark", "apps", "bench", "cli", "testing"} for each in API},
    "testing": {"box", "spark", "apps", "bench", "cli"},
    "bench": {"cli"},
}
"""What a room must not import."""


def _modules() -> dict[str, Path]:
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        names[".".join(parts).removesuffix(".__init__")] = path
    return names


MODULES = _modules()


def _imported(tree: ast.AST) -> Iterator[str]:
    """What is imported anywhere in a module, inside functions too, but not for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        yield from _imported(node)


def _graph() -> dict[str, set[str]]:
    graph = {}
    for name, path in MODULES.items():
        names = set(_imported(ast.parse(path.read_text())))
        graph[name] = {n for n in names if n in MODULES and n != name}
    return graph


GRAPH = _graph()


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("room", NEVER)
def test_a_room_depends_only_on_those_below_it(room: str) -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        for other in others
        if name.split(".")[1:2] == [room] and set(other.split(".")[1:2]) & NEVER[room]
    ]
    assert wrong == []


def test_every_module_that_a_worker_imports_ahead_is_there() -> None:
    """A name that has gone would be passed over in silence, and cost every worker its time."""
    from headrace.spark.python import daemon, fork_server

    ours = [n for n in (*daemon._KERNELS, *fork_server._NEEDED) if n.startswith("headrace")]
    assert [n for n in ours if n not in MODULES] == []
