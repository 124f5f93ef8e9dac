"""The tables that a job's streams are joined with: read before it starts, and again as asked."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import HeadraceError, PlanError
from headrace.io.files import filesystem
from headrace.io.held import HeldSource, Piece
from headrace.io.memory import TableSplit
from headrace.iteration import Kept, settled
from headrace.jobs import Output
from headrace.plan.iteration import rewired, rewired_all
from headrace.plan.nodes import Node, Read
from headrace.plan.table_join import TableJoin
from headrace.plan.time import nodes_of

log = logging.getLogger("headrace")

_LOOK = 1.0
"""Seconds after which files are looked at for changes."""


@dataclass
class Table:
    """One table of a job."""

    step: TableJoin
    place: Any
    """Where those who look it up find it."""
    due: float = float("inf")
    files: Any = None
    kept: Kept | None = None

    def load(self, engine: Any) -> None:
        """Read it, and put it in place of the version before."""
        self.files = _files(self.step.other)
        with settled(engine, _reopened(self.step.other)) as (plan,):
            kept = engine.hold(plan)
        self.place.publish(_source(engine, kept))
        before, self.kept = self.kept, kept
        if before is not None:
            before.release()

    def plan_next(self) -> None:
        if self.step.refresh is not None:
            self.due = time.monotonic() + self.step.refresh / 1e6
        elif self.step.on_change:
            self.due = time.monotonic() + _LOOK

    @property
    def is_old(self) -> bool:
        """Whether it is to be read now."""
        return self.step.refresh is not None or _files(self.step.other) != self.files


class Tables:
    """The tables of a job, and a thread that reads them again."""

    def __init__(self, engine: Any = None, tables: Sequence[Table] = (), folder: str = "") -> None:
        self.engine, self.tables, self.folder = engine, tables, folder
        self.failed = ""
        """Why a table is older than it should be."""
        self.over = threading.Event()
        for table in tables:
            table.load(engine)
            table.plan_next()
        if any(table.due < float("inf") for table in tables):
            threading.Thread(target=self._refresh, name="headrace-tables", daemon=True).start()

    def _refresh(self) -> None:
        while not self.over.wait(max(0.0, min(t.due for t in self.tables) - time.monotonic())):
            for table in self.tables:
                if table.due <= time.monotonic():
                    self._again(table)
                    table.plan_next()

    def _again(self, table: Table) -> None:
        try:
            if table.is_old:
                table.load(self.engine)
                self.failed = ""
        except Exception as error:
            if self.over.is_set():
                return
            self.failed = f"{table.step.label}: the table could not be read again: {error}"
            log.warning("%s; the job goes on with the one before", self.failed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the job's progress tells of them."""
        return (self.failed,) if self.failed else ()

    def close(self) -> None:
        """No more is looked up in them."""
        self.over.set()
        if self.folder:
            system, path = filesystem(self.folder)
            with contextlib.suppress(OSError):
                system.delete_dir(path)
        for table in self.tables:
            if table.kept is not None:
                table.kept.release()


def with_tables(
    engine: Any, outputs: Sequence[Output], place: Callable[[int], Any], folder: str = ""
) -> tuple[list[Output], Tables]:
    """Outputs whose streams have the tables that they are joined with at hand.

    ``place`` gives where to put the n-th table; ``folder`` is removed with them.
    """
    steps = {
        id(each): each
        for output in outputs
        for each in nodes_of(output.node)
        if isinstance(each, TableJoin) and each.loaded is None
    }
    if not steps:
        return list(outputs), Tables()
    places: dict[tuple[int, int | None, bool], Table] = {}
    changes: dict[int, dict[str, Any]] = {}
    for step in steps.values():
        key = id(step.other), step.refresh, step.on_change
        if key not in places:
            places[key] = Table(step, place(len(places)))
        changes[id(step)] = {"loaded": places[key].place}
    tables = Tables(engine, list(places.values()), folder)
    ends = rewired_all([output.node for output in outputs], {}, changes)
    return [replace(o, node=n) for o, n in zip(outputs, ends, strict=True)], tables


def check_refresh(table: Node, refresh: Any) -> bool:
    """Whether a table that is to be read again can have changed."""
    reads = [each for each in nodes_of(table) if isinstance(each, Read)]
    if refresh == "on change":
        if not reads or not all(each.reopen is not None for each in reads):
            raise PlanError(
                "refresh='on change' looks at files, and the table is not read from files; say how "
                "often to read it: refresh='5 min'"
            )
        return True
    return False


def _source(engine: Any, kept: Kept) -> HeldSource:
    """What an engine keeps, as others read it."""
    node = kept.node
    if isinstance(node, Read) and isinstance(node.source, HeldSource):
        return node.source
    table = engine.collect(node)
    return HeldSource(node.schema, (Piece(table.num_rows, table.nbytes, TableSplit(table)),))


def _reopened(plan: Node) -> Node:
    """A plan whose files are found anew."""
    known: dict[int, Node] = {}
    for each in nodes_of(plan):
        if isinstance(each, Read) and each.reopen is not None:
            source = each.reopen()
            if not source.schema.equals(each.source.schema):
                raise HeadraceError(f"{source} has other columns than before")
            known[id(each)] = replace(each, source=source)
    return rewired(plan, known)


def _files(plan: Node) -> Any:
    """What tells that a table's files have changed."""
    found = []
    for each in nodes_of(plan):
        if isinstance(each, Read) and each.reopen is not None:
            found.append(each.reopen.stamps())
    return found
