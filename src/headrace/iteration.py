"""Iterations as they run on any engine: what is kept between them, and when they end.

An engine computes a plan and keeps the result (``hold``); the loop is here, once for all.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import EngineError, HeadraceError, PlanError, StepError
from headrace.io.held import HeldSource
from headrace.io.memory import TableSource
from headrace.kernels.rows import FAILURES, reason_of, user_line
from headrace.plan.iteration import (
    Again,
    Cycle,
    Held,
    Iterate,
    constants_of,
    everything_in,
    rewired,
    rewired_all,
    zoned,
)
from headrace.plan.node import Node
from headrace.plan.sources import Read
from headrace.plan.time import nodes_of, said_zone

log = logging.getLogger("headrace")


class Kept(Protocol):
    """Records that an engine has computed and keeps."""

    node: Node
    """Gives them, in a plan of the same engine."""
    rows: int

    def release(self) -> None:
        """Forget them."""


class Holder(Protocol):
    """What iterations need of an engine."""

    name: str

    def hold(self, node: Node) -> Kept:
        """Compute a plan without iterations, and keep the result."""

    def collect(self, node: Node) -> pa.Table:
        """All records, in order."""


@dataclass(frozen=True)
class Round:
    """One iteration that has ended: its number from 1, its measure, and the seconds it took."""

    step: str
    number: int
    at_most: int | None
    measure: Any
    seconds: float

    def __str__(self) -> str:
        most = "" if self.at_most is None else f" of at most {self.at_most}"
        measure = "" if self.measure is None else f", {_short(self.measure)}"
        return f"{self.step}: iteration {self.number}{most}{measure}, {self.seconds:.2f} s"


def _short(value: Any, most: int = 60) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


class Watch:
    """What a bounded job in the background tells of its work, and is told."""

    def __init__(self) -> None:
        self.last: Round | None = None
        self.stopped = threading.Event()
        self.read: list[Any] = []
        """Counters of records, each with a ``value``, that the engine has made for the job."""


WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)
"""The job that the iterations of this thread belong to, if it is one in the background."""
RUNNING: ContextVar[dict[object, Node]] = ContextVar("running", default={})  # noqa: B039 - never changed
"""What the iterations of this thread go on with, by their token: a body may be within another."""
ENGINE: ContextVar[Any] = ContextVar("engine", default=None)
"""The engine that iterates in this thread: what a body computes for itself runs there too."""


class Rounds:
    """Counts iterations, and tells whoever wants to know."""

    def __init__(self, step: str, at_most: int | None, report: Callable[[Any], Any] | None) -> None:
        self.step, self.at_most, self.report = step, at_most, report
        self.number = 0
        self.begun = time.perf_counter()
        self.live = report is None and WATCH.get() is None and sys.stderr.isatty()
        self.shown = 0

    def ended(self, measure: Any) -> None:
        """An iteration has ended."""
        now = time.perf_counter()
        self.number += 1
        told = Round(self.step, self.number, self.at_most, measure, now - self.begun)
        self.begun = now
        log.info("%s", told)
        watch = WATCH.get()
        if watch is not None:
            watch.last = told
            if watch.stopped.is_set():
                raise EngineError("the job was stopped")
        if self.report is not None:
            called(self.report, self.step, "report", told)
        if self.live:
            text = str(told)
            print(f"\r{text.ljust(self.shown)}", end="", file=sys.stderr, flush=True)
            self.shown = len(text)

    def close(self) -> None:
        """There will be no more."""
        if self.shown:
            print(f"\r{' ' * self.shown}\r", end="", file=sys.stderr, flush=True)

    @property
    def is_last(self) -> bool:
        return self.at_most is not None and self.number >= self.at_most


def asked(until: Callable[..., Any], step: str, now: Any, before: Any) -> bool:
    """What a person's ``until`` says of a measure, and of the one before if it takes two."""
    given = (now, before) if takes_two(until) else (now,)
    return bool(called(lambda *values: bool(until(*values)), step, "until", *given))


def called(function: Callable[..., Any], step: str, what: str, *arguments: Any) -> Any:
    """What a person's function gives; an error names the step and their line."""
    try:
        return function(*arguments)
    except HeadraceError:
        raise
    except FAILURES as error:
        line = user_line(error.__traceback__)
        raise StepError(
            f"{step}: {what}= failed: {reason_of(error)}" + (f"\n  at {line}" if line else "")
        ) from error


def takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function asks for two values; one that may be left out is not asked for."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in plain and p.default is p.empty]
    return len(needed) == 2


@contextlib.contextmanager
def within(engine: Any) -> Iterator[None]:
    """While an engine iterates: what is computed meanwhile runs on it unless told otherwise."""
    token = ENGINE.set(engine)
    try:
        yield
    finally:
        ENGINE.reset(token)


@contextlib.contextmanager
def settled(engine: Holder, *ends: Node) -> Iterator[list[Node]]:
    """Plans without iterations: those they have are computed here, innermost input first."""
    if not any(map(iterates, ends)):
        yield list(ends)
        return
    with contextlib.ExitStack() as stack:
        known: dict[int, Node] = {}
        ends = tuple(zoned(ends))
        for end in ends:
            for each in nodes_of(end):
                if id(each) in known:
                    continue
                if isinstance(each, Iterate):
                    kept = _iterated(engine, each, known)
                    stack.callback(kept.release)
                    known[id(each)] = kept.node
                elif isinstance(each, Cycle):
                    state = last_state(engine, each, rewired(each.input, known))
                    table = called(each.give, each.label, "give", state)
                    zone = said_zone(each.input)
                    known[id(each)] = Read(each.schema, each.step, TableSource(table), zone)
        yield rewired_all(ends, known)


def iterates(node: Node) -> bool:
    """Whether a plan has iterations."""
    return any(isinstance(each, (Iterate, Cycle)) for each in nodes_of(node))


def _iterated(engine: Holder, node: Iterate, known: dict[int, Node]) -> Kept:
    """The result of an iteration, kept."""
    rounds = Rounds(node.label, node.at_most, node.report)
    with contextlib.ExitStack() as stack, within(engine):
        stack.callback(rounds.close)
        same = dict(known)
        for part in node.constant:
            ready = rewired(part, known)
            if not _is_at_hand(ready):
                kept = engine.hold(ready)
                stack.callback(kept.release)
                ready = kept.node
            same[id(part)] = ready
        stack.callback(RUNNING.set, RUNNING.get())
        current = engine.hold(rewired(node.input, known))
        rounds.begun = time.perf_counter()
        try:
            before = None
            while True:
                begins = same | {id(node.again): current.node}
                RUNNING.set({**RUNNING.get(), node.again.token: current.node})
                with settled(engine, rewired(node.body, begins)) as (body,):
                    after = engine.hold(body)
                current.release()
                current = after
                measure = _measured(engine, node, current)
                rounds.ended(measure)
                if rounds.is_last:
                    return current
                if node.until is not None and asked(node.until, node.label, measure, before):
                    return current
                before = measure
        except BaseException:
            current.release()
            raise


def last_state(engine: Holder, node: Cycle, ready: Node) -> Any:
    """The state with which a cycle ends, on input that has no iterations any more."""
    rounds = Rounds(node.label, node.at_most, node.report)
    # What a person's functions change is theirs, and the next run begins as this one did.
    state = _copied(node.state, node.label)
    compares = node.until is not None and takes_two(node.until)
    constants: dict[int, tuple[Node, Kept]] = {}
    seen = [] if node.first is None else list(nodes_of(node.first))
    with contextlib.ExitStack() as stack, within(engine):
        stack.callback(rounds.close)
        stack.callback(_release, constants)
        same = engine.hold(ready)
        stack.callback(same.release)
        rounds.begun = time.perf_counter()
        while True:
            (end,) = zoned([called(node.body, node.label, "body", same.node, state)])
            outer = {id(e): e for e in everything_in(end) if isinstance(e, Again)}
            running = RUNNING.get()
            known = {n: running[e.token] for n, e in outer.items() if e.token in running}
            end = rewired(end, known)
            parts = constants_of(end, same.node, {id(each) for each in seen})
            seen = list(nodes_of(end))
            _keep_constants(engine, parts, constants)
            known = {number: kept.node for number, (_, kept) in constants.items()}
            with settled(engine, rewired(end, known)) as (body,):
                table = engine.collect(body)
            # An update may change the state where it is.
            before = _copied(state, node.label) if compares else None
            state = called(node.update, node.label, "update", state, table)
            if state is None:
                raise StepError(f"{node.label}: update= returned None; return the next state")
            rounds.ended(_told(state))
            if rounds.is_last:
                return state
            if node.until is not None and asked(node.until, node.label, state, before):
                return state


def _keep_constants(
    engine: Holder, parts: tuple[Node, ...], constants: dict[int, tuple[Node, Kept]]
) -> None:
    """Compute what a body reads again besides its input, and forget what it no longer reads."""
    wanted = {id(part): part for part in parts if not _is_at_hand(part)}
    _release({n: constants.pop(n) for n in list(constants) if n not in wanted})
    for number, part in wanted.items():
        if number not in constants:
            with settled(engine, part) as (ready,):
                constants[number] = part, engine.hold(ready)


def _copied(state: Any, label: str) -> Any:
    if isinstance(state, (pa.Table, pa.RecordBatch)):
        return state
    try:
        return copy.deepcopy(state)
    except Exception as error:
        raise PlanError(f"{label}: the state cannot be copied ({error}); use plain data") from error


def _release(constants: dict[int, tuple[Node, Kept]]) -> None:
    for _, kept in constants.values():
        kept.release()


def _told(state: Any) -> Any:
    """A state as progress shows it: numbers and short text as they are."""
    return state if isinstance(state, (bool, int, float, str)) else None


def _is_at_hand(node: Node) -> bool:
    """Whether a part of a plan costs nothing to read again."""
    return isinstance(node, Held) or (
        isinstance(node, Read) and isinstance(node.source, (TableSource, HeldSource))
    )


def _measured(engine: Holder, node: Iterate, kept: Kept) -> Any:
    if node.measure is None:
        return None
    if node.measure is node.again:  # how many there are
        return kept.rows
    table = engine.collect(rewired(node.measure, {id(node.again): kept.node}))
    return called(node.value, node.label, "reduce", table)
