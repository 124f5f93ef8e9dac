"""The tables that a job's streams are joined with: read before it starts, and again as asked."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import HeadraceError, PlanError
from headrace.io.files import filesystem
from headrace.io.held import HeldSource, Piece
from headrace.io.memory import TableSplit
from headrace.iteration import Kept, settled
from headrace.jobs import JobOutput
from headrace.plan.iteration import rewired, rewired_all, zoned
from headrace.plan.node import Node
from headrace.plan.sources import Read
from headrace.plan.table_join import TableJoin
from headrace.plan.time import nodes_of
from headrace.windows import duration

log = logging.getLogger("headrace")

ON_CHANGE = "on change"
_LOOK = 1.0
"""Seconds after which files are looked at for changes."""


@dataclass
class Table:
    """One table of a job."""

    step: TableJoin
    plan: Node
    """The table, in the time zone of the whole pipeline."""
    place: Any
    """Where those who look it up find it."""
    due: float = float("inf")
    files: Any = None
    kept: Kept | None = None
    old: Kept | None = None
    """The version before."""
    failed: str = ""
    """Why it is older than it should be."""
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, engine: Any) -> None:
        """Read it, and put it in place of the version before."""
        files = _files(self.step.other) if self.step.on_change else None
        with settled(engine, _reopened(self.plan)) as (plan,):
            kept = engine.hold(plan)
        with self.lock:
            if self.over:
                kept.release()
                return
            self.place.publish(_source(engine, kept))
            self.kept, self.old, before = kept, self.kept, self.old
        self.files, self.failed = files, ""
        if before is not None:  # the last one may just be being mapped
            before.release()

    def close(self) -> None:
        """It is not looked up in any more."""
        with self.lock:
            self.over = True
            for kept in (self.kept, self.old):
                if kept is not None:
                    kept.release()

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
        self.over = threading.Event()
        try:
            for table in tables:
                table.load(engine)
                table.plan_next()
        except BaseException as error:
            self.close()
            if isinstance(error, HeadraceError) and not str(error).startswith("step "):
                raise type(error)(f"{table.step.label}: the table: {error}") from error
            raise
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
        except Exception as error:
            if self.over.is_set():
                return
            table.failed = f"{table.step.label}: the table could not be read again: {error}"
            log.warning("%s; the job goes on with the one before", table.failed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the job's progress tells of them."""
        return tuple(table.failed for table in self.tables if table.failed)

    def close(self) -> None:
        """No more is looked up in them."""
        self.over.set()
        for table in self.tables:
            table.close()
        if self.folder:
            system, path = filesystem(self.folder)
            with contextlib.suppress(OSError):
                system.delete_dir(path)


def with_tables(
    engine: Any, outputs: Sequence[JobOutput], place: Callable[[int], Any], folder: str = ""
) -> tuple[list[JobOutput], Tables]:
    """Outputs whose streams have the tables that they are joined with at hand.

    ``place`` gives where to put the n-th table; ``folder`` is removed with them.
    """
    if not any(isinstance(e, TableJoin) for output in outputs for e in nodes_of(output.node)):
        return list(outputs), Tables()
    ends = zoned([output.node for output in outputs])
    outputs = [replace(o, node=n) for o, n in zip(outputs, ends, strict=True)]
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
            places[key] = Table(step, step.other, place(len(places)))
        changes[id(step)] = {"loaded": places[key].place}
    tables = Tables(engine, list(places.values()), folder)
    ends = rewired_all([output.node for output in outputs], {}, changes)
    return [replace(o, node=n) for o, n in zip(outputs, ends, strict=True)], tables


def refreshed(table: Node, refresh: Any) -> tuple[int | None, bool]:
    """How often a table is read again in microseconds, and whether when its files change."""
    if refresh is None:
        return None, False
    if refresh == ON_CHANGE:
        reads = [each for each in nodes_of(table) if isinstance(each, Read)]
        if not reads or not all(each.reopen is not None for each in reads):
            raise PlanError(
                "refresh='on change' looks at files, and the table is not read from files; say how "
                "often to read it: refresh='5 min'"
            )
        return None, True
    try:
        return duration(refresh, "refresh", 1), False
    except PlanError as error:
        raise PlanError(f"{error}, or {ON_CHANGE!r}") from None


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
