"""``scan``: a person's function of a state and a record, over the records of many keys."""

from __future__ import annotations

import copy
import datetime
import itertools
import pickle
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StepError
from headrace.kernels.chain import as_bundle
from headrace.kernels.columns import as_column, numbers
from headrace.kernels.rows import FAILURES, failure, pack_rows, rows_of
from headrace.kernels.scans.compiled import CompiledStep, FailedAt, compiled_step, packed_dtype
from headrace.kernels.scans.steps import Records, Steps, by_slot
from headrace.plan.scans import Scan, UserStep
from headrace.windows import FOREVER, duration, micros_of


class Timer:
    """One key's alarm: ``on_timer`` is called when event time passes the moment it is set to."""

    __slots__ = ("_micros", "_now")

    def __init__(self, micros: int, now: int) -> None:
        self._micros, self._now = micros, now

    def at(self, time: Any) -> None:
        """Set it to a moment; what it was set to before is forgotten.

        One that has passed is now.
        """
        self._micros = max(micros_of(time), self._now)

    def after(self, span: Any) -> None:
        """Set it to some time after this record's: ``after("5 minutes")``."""
        self._micros = self._now + duration(span, "after")

    def cancel(self) -> None:
        """Take it back."""
        self._micros = FOREVER

    @property
    def is_set(self) -> bool:
        return self._micros != FOREVER


class Objects:
    """States that are Python objects."""

    fields = (pa.field("state", pa.binary()),)

    def __init__(self, initial: Any) -> None:
        self.initial = initial
        self.states: list[Any] = []

    @property
    def nbytes(self) -> int:
        return 128 * len(self.states)

    def fresh(self) -> Any:
        return self.initial() if callable(self.initial) else copy.deepcopy(self.initial)

    def enlarge(self, room: int) -> None:
        self.states += [_NEW] * (room - len(self.states))

    def get(self, slot: int) -> Any:
        state = self.states[slot]
        return self.fresh() if state is _NEW else state

    def set(self, slot: int, state: Any) -> None:
        self.states[slot] = state

    def reset(self, slots: Any) -> None:
        for slot in slots.tolist():
            self.states[slot] = _NEW

    def state(self, slots: Any) -> list[pa.Array]:
        values = [self.states[slot] for slot in slots.tolist()]
        return [pa.array([None if v is _NEW else pickle.dumps(v, 5) for v in values], pa.binary())]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        for slot, data in zip(slots.tolist(), columns[0].to_pylist(), strict=True):
            self.states[slot] = _NEW if data is None else pickle.loads(data)


_NEW = object()


class Packed:
    """States that are numbers, some numbers, or a NumPy record: in one array."""

    def __init__(self, initial: Any, dtype: Any) -> None:
        self.dtype = dtype
        self.initial = np.array([initial], dtype)
        self.states = np.zeros(0, dtype)
        # With the type in its name: a checkpoint of another would be read as this one.
        self.fields = (pa.field(f"state {dtype}", pa.binary(dtype.itemsize)),)
        self.record = isinstance(initial, np.void)

    @property
    def nbytes(self) -> int:
        return int(self.states.nbytes)

    def enlarge(self, room: int) -> None:
        before = self.states.size
        more = np.empty(room, self.dtype)
        more[:before] = self.states
        more[before:] = self.initial[0]
        self.states = more

    def get(self, slot: int) -> Any:
        if self.record:  # whose fields are attributes as well, as Numba has it
            return self.states.view(np.dtype((np.record, self.dtype)))[slot]
        return self.states[slot].item()

    def set(self, slot: int, state: Any) -> None:
        self.states[slot] = state

    def reset(self, slots: Any) -> None:
        self.states[slots] = self.initial[0]

    def state(self, slots: Any) -> list[pa.Array]:
        data = np.ascontiguousarray(self.states[slots])
        buffers = [None, pa.py_buffer(data.view(np.uint8) if data.size else b"")]
        return [pa.Array.from_buffers(self.fields[0].type, data.size, buffers)]

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        width, column = self.dtype.itemsize, columns[0]
        if len(column):
            data = np.frombuffer(column.buffers()[1], np.uint8)
            data = data[column.offset * width : (column.offset + len(column)) * width]
            self.states[slots] = data.view(self.dtype)


class UserSteps(Steps):
    """The states of a person's function."""

    def __init__(self, node: Scan, what: UserStep, schema: pa.Schema) -> None:
        super().__init__()
        self.node, self.what, self.schema = node, what, node.schema
        self.label = f"{node.label} ({node.detail})"
        self.names = list(what.fields)
        self.fires = what.on_timer is not None
        self.compiled: CompiledStep | str = compiled_step(what, schema)
        if isinstance(self.compiled, CompiledStep):
            self.states: Any = Packed(what.initial, self.compiled.dtype)
        else:
            dtype = packed_dtype(what.initial) if isinstance(what.initial, np.void) else None
            self.states = Objects(what.initial) if dtype is None else Packed(what.initial, dtype)
        self.pickles = isinstance(self.states, Objects)
        timers = (pa.field("timer", pa.int64()),) if self.fires else ()
        self.fields = (*self.states.fields, *timers)

    @property
    def nbytes(self) -> int:
        return int(self.states.nbytes)

    def enlarge(self, room: int) -> None:
        self.states.enlarge(room)

    def reset(self, slots: Any) -> None:
        self.states.reset(slots)
        self.timers[slots] = FOREVER

    def state(self, slots: Any) -> list[pa.Array]:
        columns: list[pa.Array] = self.states.state(slots)
        return [*columns, as_column(self.timers[slots])] if self.fires else columns

    def restore(self, slots: Any, columns: list[pa.Array]) -> None:
        self.states.restore(slots, columns)
        if self.fires:
            self.timers[slots] = np.asarray(columns[1])

    # Records

    def run(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        if self.what.batches:
            return self._by_batch(records)
        compiled = self.compiled
        if isinstance(compiled, CompiledStep) and compiled.takes(records.batch):
            try:
                rows, columns = compiled.run(records, self.states.states, self.states.initial)
            except FailedAt as failed:
                row = next(rows_of(records.batch.slice(failed.args[0], 1).select(self.names)))
                cause = failed.__cause__ or failed
                raise failure(self.label, cause, row) from cause
            return self._beside(records, rows, columns), rows
        return self._one_by_one(records)

    def _beside(self, records: Records, rows: Any, columns: list[pa.Array]) -> pa.RecordBatch:
        """What the function gave, with columns of the records it came from before it."""
        kept = [records.batch.column(name) for name in self.node.kept]
        if rows.size != records.batch.num_rows or not _counts(rows):
            taken = as_column(rows)
            kept = [column.take(taken) for column in kept]
        return pa.RecordBatch.from_arrays([*kept, *columns], schema=self.schema)

    def _one_by_one(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        batch, states, function = records.batch, self.states, self.what.function
        times = None if records.times is None else records.times.tolist()
        resets = None if records.resets is None else records.resets.tolist()
        given: list[Any] = []
        origin: list[int] = []
        rung: dict[int, int] = {}
        """The outputs that a timer gave, between two records of its key, and its time."""
        rows = rows_of(batch.select(self.names))
        for i, (row, slot) in enumerate(zip(rows, records.slots.tolist(), strict=True)):
            if resets is not None and resets[i]:
                for time, outputs in self._rung(slot, records.ends[i]) if self.fires else ():
                    rung |= dict.fromkeys(range(len(given), len(given) + len(outputs)), time)
                    given += outputs
                    origin += [i] * len(outputs)
                states.reset(np.array([slot]))
                self.timers[slot] = FOREVER
            now = self.now if times is None else times[i]
            if self.fires and self.timers[slot] <= now:
                for time, outputs in self._rung(slot, now):
                    rung |= dict.fromkeys(range(len(given), len(given) + len(outputs)), time)
                    given += outputs
                    origin += [i] * len(outputs)
            try:
                if self.what.timed:
                    timer = Timer(int(self.timers[slot]), now)
                    result = function(states.get(slot), row, timer)
                    self.timers[slot] = timer._micros
                else:
                    result = function(states.get(slot), row)
                state, outputs = self._result(result)
            except FAILURES as error:
                raise failure(self.label, error, row) from error
            states.set(slot, state)
            given += outputs
            origin += [i] * len(outputs)
        if not given:
            return None, None
        rows_of_given = np.array(origin, np.int64)
        out = self._beside(records, rows_of_given, self._packed(given))
        return self._at(out, rung) if rung else out, rows_of_given

    def _at(self, out: pa.RecordBatch, rung: dict[int, int]) -> pa.RecordBatch:
        """Outputs, those of timers with the timers' times."""
        clock = self.node.clock
        for name in () if clock is None else clock.columns:
            if clock is not None and name in self.node.kept:
                place = out.schema.get_field_index(name)
                times = numbers(out.column(place), np.int64).copy()
                times[list(rung)] = np.array(list(rung.values())) - clock.shift
                field = out.schema.field(place)
                out = out.set_column(place, field, as_column(times, field.type))
        return out

    def _result(self, result: Any) -> tuple[Any, list[Any]]:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(
                f"it returned {result!r}; a step of scan returns (state, output), the output being "
                "None, a record, or a list of records"
            )
        state, output = result
        if output is None:
            return state, []
        return state, list(output) if isinstance(output, (list, GeneratorType)) else [output]

    def _packed(self, given: list[Any]) -> list[pa.Array]:
        try:
            return list(pack_rows(given, self.what.gives).columns)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
            for output in given:
                try:
                    pack_rows([output], self.what.gives)
                except Exception as error:
                    raise failure(self.label, error, output, "result") from None
            raise

    def _by_batch(self, records: Records) -> tuple[pa.RecordBatch | None, Any]:
        order, first = by_slot(records.slots)
        ordered = records.batch.take(as_column(order))
        edges = [*np.flatnonzero(first).tolist(), order.size]
        if records.resets is not None:  # a batch for each stretch of a key
            edges = sorted({*edges, *np.flatnonzero(records.resets[order]).tolist()})
        out: list[pa.RecordBatch] = []
        origins: list[Any] = []
        for start, end in itertools.pairwise(edges):
            slot = int(records.slots[order[start]])
            if records.resets is not None and records.resets[order[start]]:
                self.states.reset(np.array([slot]))
            piece = ordered.slice(start, end - start)
            result: Any = None
            try:
                result = self.what.function(self.states.get(slot), piece.select(self.names))
                if not (isinstance(result, tuple) and len(result) == 2):
                    raise TypeError(f"it returned {type(result).__name__}, not (state, records)")
                made = None if result[1] is None else as_bundle(result[1], self.what.gives)
            except FAILURES as error:
                raise failure(self.label, error, None, "a batch of one key") from error
            self.states.set(slot, result[0])
            if made is not None and made.num_rows:
                out.append(self._with_keys(piece, made))
                origins.append(np.full(made.num_rows, order[end - 1]))
        return (pa.concat_batches(out), np.concatenate(origins)) if out else (None, None)

    def _with_keys(self, piece: pa.RecordBatch, made: pa.RecordBatch) -> pa.RecordBatch:
        """What a function gave of a key's records, with the key beside it."""
        first = as_column(np.zeros(made.num_rows, np.int64))
        kept = [piece.column(name).take(first) for name in self.node.kept]
        return pa.RecordBatch.from_arrays([*kept, *made.columns], schema=self.schema)

    # Timers

    def _rung(self, slot: int, until: int) -> Iterator[tuple[int, list[Any]]]:
        """A key's timer goes off, as often as it is set again to a time that has passed."""
        assert self.what.on_timer is not None
        while self.timers[slot] <= until and self.timers[slot] != FOREVER:
            time = int(self.timers[slot])
            timer = Timer(FOREVER, time)
            try:
                result = self.what.on_timer(self.states.get(slot), _moment(time), timer)
                state, outputs = self._result(result)
            except FAILURES as error:
                raise failure(self.label, error, _moment(time), "its timer at") from error
            if timer._micros <= time:
                raise StepError(f"{self.label}: on_timer set the timer to a time that has passed")
            self.states.set(slot, state)
            self.timers[slot] = timer._micros
            yield time, outputs

    def fire(
        self, slots: Any, untils: Any, *, once: bool
    ) -> tuple[Any, Any, pa.RecordBatch] | None:
        given: list[Any] = []
        owners: list[int] = []
        times: list[int] = []
        order = np.argsort(self.timers[slots], kind="stable")
        for slot, until in zip(slots[order].tolist(), untils[order].tolist(), strict=True):
            rings = self._rung(slot, until)
            for time, outputs in itertools.islice(rings, 1) if once else rings:
                given += outputs
                owners += [slot] * len(outputs)
                times += [time] * len(outputs)
        if not given:
            return None
        made = pa.RecordBatch.from_arrays(self._packed(given), schema=self.what.gives)
        return np.array(owners, np.int64), np.array(times, np.int64), made


def _moment(micros: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(
        microseconds=micros
    )


def _counts(rows: Any) -> bool:
    """Whether rows are all of them, in order."""
    return bool((rows == np.arange(rows.size)).all())
