"""Compiled functions over bundles: Arrow's buffers in, Arrow's buffers out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kernels.compiled.calls import library
from headrace.kernels.compiled.expressions import Path, Restart
from headrace.kernels.compiled.kernel import (
    ARENA,
    CAPACITY,
    FIRST,
    GIVEN,
    MADE,
    NEEDS_RECORDS,
    ORIGIN,
    READ,
    ROOM,
    STATUS,
    USED,
    WANTED,
    Loop,
    Work,
)
from headrace.kernels.compiled.machine import Machine
from headrace.kernels.compiled.names import unchanged
from headrace.kernels.compiled.outputs import Output
from headrace.kernels.compiled.statements import Definition
from headrace.kernels.compiled.values import Kind, Unfit

_ARENA = 1 << 16
_LONGEST = 2**31 - 1
_RESTARTS = 20


class TooMuchText(Exception):
    """A column would have more text than one array holds."""


@dataclass(frozen=True)
class Ran:
    """What came of a bundle.

    ``left`` are the records left to the interpreter; of a flat_map, ``origin`` is the record that
    each of those given came from, and there are none of records that are left.
    """

    columns: list[pa.Array]
    left: Any
    origin: Any


class Compiled:
    """Functions compiled for columns of which some have nulls."""

    def __init__(self, work: Work, nullable: frozenset[str] = frozenset()) -> None:
        self.work, self._nullable = work, nullable
        library()
        kinds: dict[Path, Kind] = {}
        given_null: set[str] = set()
        self._trees: dict[Any, Definition] = {}  # held, for their ids tell variables apart
        for _ in range(_RESTARTS):
            try:
                self._loop = Loop(work, nullable, kinds, given_null, self._trees)
                break
            except Restart:
                continue
        else:
            raise Unfit("the types of its variables do not settle")
        self.columns, self.outputs = self._loop.columns.order, self._loop.outputs
        self._machine: Machine | None = None

    @property
    def current(self) -> bool:
        """Whether the globals and closures that it was compiled with are what they were."""
        return unchanged(self._loop.names.guards)

    def compile(self) -> Compiled:
        """Make machine code of it."""
        self._machine = Machine(self._loop.module)
        self._run, self._gather = (self._machine.function(n) for n in ("run", "gather"))
        return self

    def run(self, batch: pa.RecordBatch) -> Ran:
        """The functions over all records of a bundle."""
        count, many = batch.num_rows, self.work.method == "flat_map"
        first_read = FIRST + GIVEN * len(self.outputs)
        call = np.zeros(first_read + READ * len(self.columns), np.int64)
        every = np.full(count // 8 + 1 if self._nullable else 0, 255, np.uint8)
        for k, name in enumerate(self.columns):
            place = first_read + READ * k
            call[place : place + READ] = _addresses(batch.column(name), every)
        status = np.zeros(count, np.uint8)
        capacity = max(1024, 2 * count) if many else count
        origin = np.empty(capacity if many else 0, np.int64)
        given = [_Given(output, capacity) for output in self.outputs]
        arenas: list[Any] = []
        call[STATUS], at = status.ctypes.data, 0
        while True:
            call[CAPACITY], call[ORIGIN] = capacity, origin.ctypes.data
            for k, each in enumerate(given):
                place = FIRST + GIVEN * k
                call[place : place + GIVEN] = each.addresses
            at = self._run(call.ctypes.data, at, count)
            if at == count:
                break
            wanted = int(call[WANTED])
            if wanted == NEEDS_RECORDS:
                capacity *= 2
                origin = _larger(origin, capacity)
                for each in given:
                    each.grow(capacity)
            else:
                arenas.append(np.empty(max(_ARENA, 2 * int(call[ROOM]), 2 * wanted), np.uint8))
                call[ARENA], call[ROOM], call[USED] = arenas[-1].ctypes.data, arenas[-1].size, 0
        left = np.flatnonzero(status)
        made = int(call[MADE]) if many else count
        columns = [each.column(made, None if many else left, self._gather) for each in given]
        return Ran(columns, left, origin[:made])


def _addresses(array: pa.Array, every: Any) -> tuple[int, int, int, int]:
    """Where the values of a column lie, and the bits that say which are there; or ``every`` bit."""
    kind, offset = array.type, array.offset
    valid, first, *rest = (0 if each is None else each.address for each in array.buffers())
    there = (valid, offset) if valid else (every.ctypes.data, 0)
    if pa.types.is_boolean(kind):
        return first, offset, *there
    if pa.types.is_string(kind):
        return first + 4 * offset, rest[0], *there
    return first + kind.bit_width // 8 * offset, 0, *there


def _larger(values: Any, size: int) -> Any:
    larger = np.empty(size, values.dtype)
    larger[: values.size] = values
    return larger


class _Given:
    """A column as it is being written."""

    def __init__(self, output: Output, capacity: int) -> None:
        self.output = output
        is_text = output.kind is Kind.TEXT
        self.data = np.empty(capacity, output.dtype)
        self.lengths = np.empty(capacity if is_text else 0, np.int64)
        self.valid = np.empty(capacity if output.nulls else 0, np.uint8)

    @property
    def addresses(self) -> tuple[int, int, int]:
        valid = self.valid.ctypes.data if self.valid.size else 0
        return self.data.ctypes.data, self.lengths.ctypes.data, valid

    def grow(self, capacity: int) -> None:
        self.data = _larger(self.data, capacity)
        if self.lengths.size:
            self.lengths = _larger(self.lengths, capacity)
        if self.valid.size:
            self.valid = _larger(self.valid, capacity)

    def column(self, count: int, left: Any, gather: Any) -> pa.Array:
        """The first ``count`` as a column; what stands for the records ``left`` does not matter."""
        kind = self.output.field.type
        valid, nulls = None, 0
        if self.output.nulls:
            flags = self.valid[:count]
            if left is not None:
                flags[left] = 0
            nulls = count - int(np.count_nonzero(flags))
            valid = pa.py_buffer(np.packbits(flags, bitorder="little")) if nulls else None
        if self.output.kind is Kind.TEXT:
            lengths = self.lengths[:count]
            if left is not None:
                lengths[left] = 0
            if nulls:
                lengths[flags == 0] = 0
            return _texts(self.data[:count], lengths, valid, nulls, gather)
        values = self.data[:count]
        if self.output.kind is Kind.BOOL:
            values = np.packbits(values & 1, bitorder="little")
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(values)], nulls)


def _texts(places: Any, lengths: Any, valid: Any, nulls: int, gather: Any) -> pa.Array:
    """A column of texts that lie anywhere."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _LONGEST:
        raise TooMuchText
    offsets = offsets.astype(np.int32)
    data = pa.allocate_buffer(int(offsets[-1]))
    call = np.array(
        [places.ctypes.data, lengths.ctypes.data, offsets.ctypes.data, data.address], np.int64
    )
    gather(call.ctypes.data, 0, lengths.size)
    buffers = [valid, pa.py_buffer(offsets), data]
    return pa.Array.from_buffers(pa.string(), lengths.size, buffers, nulls)
