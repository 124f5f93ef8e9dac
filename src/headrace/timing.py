"""Event time and the clock: ``event_time``, ``processing_time``, ``window`` and ``late``."""

from __future__ import annotations

import zoneinfo
from dataclasses import replace
from functools import reduce as fold_left
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import PlanError, nearest
from headrace.expressions import Expr, to_expr
from headrace.kernels.expressions import compile_expression
from headrace.kernels.lateness import late_schema
from headrace.keyed import WindowedStream
from headrace.plan.iteration import Again
from headrace.plan.node import Named, Narrow
from headrace.plan.partitions import Buffered
from headrace.plan.sources import External, Read
from headrace.plan.time import EventTime, Late, clock_needed, is_bounded, nodes_of
from headrace.steps import Steps
from headrace.types import type_name
from headrace.windows import AnyWindow, CountWindow, duration

if TYPE_CHECKING:
    from headrace.stream import Stream

PROCESSING = "processing_time"
"""The column of the time at which records were read, unless it has a name of its own."""
DEFAULT_IDLE = 30_000_000
"""How long a split of an unbounded source may be silent before it stops holding back windows."""
DEFAULT_AHEAD = 86400 * 10**6
"""How far ahead of the clock a record of an unbounded source may be."""


class Timing(Steps):
    """What says when records happen, and gathers them by that."""

    def event_time(
        self,
        column: str,
        delay: Any = None,
        *,
        idle: Any = None,
        when_idle: str = "hold",
        ahead: Any = None,
        punctuation: Any = None,
    ) -> Stream:
        """Name the event-time column, and say how late its records may come.

        On unbounded input the watermark is the largest time seen less ``delay``; a record below it
        goes to ``late``. Instead of a delay, ``punctuation`` (an expression, or a function of a
        row) may return a time for records that announce that no earlier record will follow. A
        source that sends its own watermarks needs neither.

        On bounded input no record is late, however disordered: ``delay`` and ``punctuation`` have
        no effect, and windows close when the input ends. Only a source's own watermarks close them
        earlier.

        On unbounded input a split that is silent for longer than ``idle`` (30 seconds
        unless told) stops holding the watermark back. Once all are, the watermark stays where it
        is, or with ``when_idle="advance"`` goes on by the clock, so that the last windows close. A
        record more than ``ahead`` (1 day unless told) ahead of the clock does not move the
        watermark: it goes to ``late``, for a wrong time must not make all that follow late.
        """
        with self._building("event_time") as at:
            if not isinstance(column, str):
                raise PlanError(f"event_time takes the name of a column, not {column!r}")
            self._known(column)
            if delay is not None and punctuation is not None:
                raise PlanError("give delay= or punctuation=, not both")
            node = self._beginning("event_time")
            source = node.source if isinstance(node, Read) else None
            carries = source is not None and bool(source.watermarks)
            bounded = is_bounded(node)
            if delay is None and punctuation is None:
                lag = None if carries else 0
            else:
                lag = None if delay is None else duration(delay, "delay")
            if when_idle not in ("hold", "advance"):
                raise PlanError(f"when_idle={when_idle!r}: use 'hold' or 'advance'")
            if bounded and (when_idle != "hold" or ahead is not None):
                raise PlanError("when_idle= and ahead= are for input that does not end")
            if idle is None:
                quiet = None if bounded or source is None else DEFAULT_IDLE
            else:
                quiet = duration(idle, "idle", 1)
            if punctuation is not None and not (
                callable(punctuation) and not isinstance(punctuation, Expr)
            ):
                punctuation = to_expr(punctuation).tree
                kind = compile_expression(punctuation, self.schema).type
                if not (pa.types.is_timestamp(kind) or pa.types.is_null(kind)):
                    raise PlanError(f"punctuation= gives a {type_name(kind)}, not a timestamp")
            elif punctuation is not None:
                self._function(punctuation, returns=True)
            far = DEFAULT_AHEAD if ahead is None else duration(ahead, "ahead")
            return self._narrow(
                EventTime(
                    self.schema, at.step, self.node, column, lag, quiet, punctuation,
                    None if bounded else far, when_idle == "advance", bounded=bounded,
                )
            )  # fmt: skip

    def processing_time(self, column: str = "processing_time") -> Stream:
        """Give every record the time at which it is read, as a column, and go by that.

        It is the stream's event time from here on: windows, scans and joins go by it, and the
        watermark is the time of day, so that windows close though nothing more comes. No record
        is ever late. ``window(hr.tumbling("1s", time="processing"))`` calls it where it is needed.
        """
        with self._building("processing_time") as at:
            if not isinstance(column, str) or not column:
                raise PlanError(f"processing_time takes the name of a new column, not {column!r}")
            node = self._beginning("processing_time")
            if isinstance(node, External) and not is_bounded(node):
                raise PlanError(
                    "a streaming DataFrame is read by Spark; add the time there, with "
                    "current_timestamp(), and call event_time"
                )
            if column in self.columns:
                raise PlanError(f"there is a column '{column}' already; name it otherwise")
            step = EventTime(self.schema, at.step, self.node, column, 0, None, by_clock=True)
            return self._narrow(step)

    def time_zone(self, zone: str) -> Stream:
        """Say in which time zone the pipeline reads the clock: ``time_zone("Europe/Berlin")``.

        It is what ``hour``, ``date_trunc`` and casts between times and text go by, on any engine
        and whatever a Spark session is set to; UTC unless told. Call it right after the source.
        """
        with self._building("time_zone"):
            if not isinstance(self.node, (Read, External)):
                raise PlanError("call time_zone right after the source, for it is the pipeline's")
            try:
                zoneinfo.ZoneInfo(zone)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
                names = zoneinfo.available_timezones()
                raise PlanError(
                    f"there is no time zone {zone!r}{nearest(str(zone), sorted(names))}"
                ) from None
            return self._with(replace(self.node, zone=zone))

    def window(self, window: AnyWindow | CountWindow) -> WindowedStream:
        """All records by window of time, or so many of them at a time.

        ``window(hr.tumbling("1s")).agg(n=hr.count())``, ``window(hr.count_window(10))``
        """
        return self._windowed(window, (), tuple(self.columns))

    @property
    def late(self) -> Stream:
        """The records that came below the watermark already promised, with how late they were.

        Beside the record's columns: ``late_by``, the ``watermark`` it fell below, and the
        ``reason``; a record too far ahead of the clock is here too, with neither of the first two.
        A job counts them whether this is used or not. Which records are late depends on how they
        arrive, so a bounded job on Spark, which sees all records at once, has none.
        """
        found = [n for n in nodes_of(self.node) if isinstance(n, EventTime)]
        if not found:
            raise PlanError("no step of this stream says where its event time is: call event_time")
        return fold_left(lambda a, b: a.union(b), [self._with(_late(node)) for node in found])

    def _beginning(self, method: str) -> Read | External | Again:
        """The source, if only steps that leave each record where it is come after it."""
        node = self.node
        while isinstance(node, Narrow):
            if isinstance(node, EventTime):
                raise PlanError(f"{node.label} has said already where the event time is")
            if isinstance(node, Buffered):
                raise PlanError(
                    f"event time is said where records come in: call it before {node.label}, "
                    "or pass buffer= to hr.Box"
                )
            node = node.input
        if not isinstance(node, (Read, External, Again)):
            raise PlanError(
                f"call {method} right after the source, before {node.label}, which brings records "
                "together"
            )
        return node

    def _by_processing_time(self) -> Stream:
        """This stream with the time at which records are read as its event time."""
        said = [n for n in nodes_of(self.node) if isinstance(n, EventTime)]
        if not said:
            if PROCESSING in self.columns:
                raise PlanError(
                    f"there is a column '{PROCESSING}' already; call processing_time('at') before"
                )
            return self.processing_time(PROCESSING)
        other = [n for n in said if not n.by_clock]
        if other:
            raise PlanError(
                f"{other[0].label} has said already where the event time is; leave it out, or "
                "time='processing'"
            )
        clock_needed(self.node, "a window")
        return self._stream

    def _windowed(
        self, window: AnyWindow | CountWindow, keys: Named, fields: tuple[str, ...]
    ) -> WindowedStream:
        with self._building("window"):
            if isinstance(window, CountWindow):
                if window.order == "event":
                    clock_needed(self.node, "order='event'")
            elif not isinstance(window, AnyWindow):
                raise PlanError(
                    f"{window!r} is not a window; use hr.tumbling('1s'), hr.sliding, hr.session or "
                    "hr.count_window(10)"
                )
            elif window.processing:
                timed = self._by_processing_time()
                return WindowedStream(timed, keys, fields, replace(window, processing=False))
            else:
                clock_needed(self.node, "a window")
            return WindowedStream(self._stream, keys, fields, window)


def _late(node: EventTime) -> Late:
    return Late(late_schema(node, node.schema), node.step + 1, node)
