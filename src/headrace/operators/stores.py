"""Stores: where the states of operators keep bundles, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

Order = tuple[int, ...]
"""A place in the input, to compare with others. The first number says which part of the input, as a
split of a source; those after it count within that part, and a state gets them in their order."""
Note = dict[str, Any]
"""The small things that a state remembers beside its bundles, as JSON holds them."""


_SPLITS, _LANES = 20, 31


def input_number(source: int, split: int) -> int:
    """A source's split as part of the input, the same on both engines."""
    return source << _SPLITS | split


def of_lane(lane: int, number: int) -> int:
    """The same as it comes through one of the streams of a union.

    In a union of unions the streams of all of them are counted, in their order: ``lane`` is how
    many there are before those of this one.
    """
    return (lane << _LANES) + number


def origin(order: Order) -> Order:
    """Which part of the input a place is in: what comes of one part comes in its order."""
    return order[:1]


def place_in(order: Order) -> tuple[int, int]:
    """The place within its part as two numbers: its sequence, and all that count within that.

    Those after the first are as many for all bundles that come the same way, so each has as many
    bits: beyond them bundles are no longer told apart, which takes thousands of one bundle.
    """
    sequence, *steps = order[1:] or (0,)
    bits = 62 // max(1, len(steps))
    folded = 0
    for step in steps:
        folded = folded << bits | min(step, (1 << bits) - 1)
    return sequence, folded


class Store(Protocol):
    """The bundles that a state keeps: each has a kind, a slice of time, and a number."""

    def get(self, kind: int, slice: int, number: int, schema: pa.Schema) -> pa.RecordBatch: ...
    def put(self, kind: int, slice: int, number: int, batch: pa.RecordBatch) -> None: ...
    def remove(self, kind: int, slice: int, number: int) -> None: ...


Name = tuple[int, int, int]
"""A bundle's kind, slice and number."""


def pack(batch: pa.RecordBatch) -> pa.Buffer:
    """A record batch as bytes; its schema is known to both ends."""
    return batch.serialize()


def unpack(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of ``pack``."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


class MemoryStore:
    """A store in memory."""

    def __init__(self) -> None:
        self.batches: dict[Name, pa.RecordBatch] = {}

    @property
    def nbytes(self) -> int:
        return sum(int(batch.nbytes) for batch in list(self.batches.values()))

    def get(self, kind: int, slice: int, number: int, schema: pa.Schema) -> pa.RecordBatch:
        return self.batches[kind, slice, number]

    def put(self, kind: int, slice: int, number: int, batch: pa.RecordBatch) -> None:
        self.batches[kind, slice, number] = batch

    def remove(self, kind: int, slice: int, number: int) -> None:
        del self.batches[kind, slice, number]


class TrackedStore(MemoryStore):
    """A store in memory that begins with what a checkpoint has, and knows what has changed since.

    A bundle of a checkpoint stays packed until it is asked for: only then is its schema known.
    """

    def __init__(self, packed: Mapping[Name, pa.Buffer]) -> None:
        super().__init__()
        self.packed = dict(packed)
        self.changed: dict[Name, None] = {}

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(int(data.size) for data in list(self.packed.values()))

    def get(self, kind: int, slice: int, number: int, schema: pa.Schema) -> pa.RecordBatch:
        name = (kind, slice, number)
        data = self.packed.pop(name, None)
        if data is not None:
            self.batches[name] = unpack(data, schema)
        return self.batches[name]

    def put(self, kind: int, slice: int, number: int, batch: pa.RecordBatch) -> None:
        name = (kind, slice, number)
        self.packed.pop(name, None)
        self.batches[name] = batch
        self.changed[name] = None

    def remove(self, kind: int, slice: int, number: int) -> None:
        name = (kind, slice, number)
        if self.packed.pop(name, None) is None:
            del self.batches[name]
        self.changed[name] = None

    def changes(self) -> dict[Name, pa.RecordBatch | None]:
        """What was put (None: removed) since this was last asked."""
        changed, self.changed = self.changed, {}
        return {name: self.batches.get(name) for name in changed}

    def data(self, name: Name) -> pa.Buffer:
        """A bundle, packed."""
        return self.packed[name] if name in self.packed else pack(self.batches[name])


_FEW = 8
"""So many bundles of a slice are kept as they come."""
_FEW_ROWS = 1 << 8
"""So few are not looked at: to ask a bundle for its size takes as long as to keep it."""
_MANY_ROWS = 1 << 10
"""A bundle of so many is kept by itself."""
_LARGE = 64 << 20
"""About the largest bundle that is kept as one: what a value of a state store can well hold."""


class Retained:
    """The bundles of one kind that a state retains, by slice of time, and the note that lists them.

    With ``merge`` a bundle is put together with those before it, of the same part of the input,
    that are not much larger: so there are few, and each record is written again only a few times.
    """

    def __init__(
        self,
        store: Store,
        note: Note,
        kind: int,
        schema: pa.Schema,
        merge: Callable[[list[pa.RecordBatch]], pa.RecordBatch] | None = None,
    ) -> None:
        self.store, self.kind, self.schema, self.merge = store, kind, schema, merge
        # JSON makes text of numbers that are keys.
        known = {int(slice): bundles for slice, bundles in note.get(f"kept-{kind}", {}).items()}
        self.slices: dict[int, list[list[Any]]] = known
        note[f"kept-{kind}"] = known
        """For each slice its bundles in order: number, rows, order."""

    def numbers(self) -> list[int]:
        """The slices that have something."""
        return list(self.slices)

    def __contains__(self, slice: int) -> bool:
        return slice in self.slices

    def append(self, slice: int, batch: pa.RecordBatch, order: Order = ()) -> bool:
        """Keep a bundle; whether it is now the last as it came, and not cut or put together."""
        kept = self.slices.setdefault(slice, [])
        pieces = 1 if batch.num_rows < _FEW_ROWS else -(-batch.nbytes // _LARGE)
        if pieces > 1:
            size = -(-batch.num_rows // pieces)
            for start in range(0, batch.num_rows, size):
                self._put(slice, kept, batch.slice(start, size), order)
            return False
        if self.merge is not None and len(kept) >= _FEW:
            together = self._with_smaller(slice, kept, batch, order)
            self._put(slice, kept, together, order)
            return together is batch
        self._put(slice, kept, batch, order)
        return True

    def extend(self, slice: int, batches: list[pa.RecordBatch]) -> None:
        """Keep some bundles: large ones as they are, small ones together."""
        kept, small = self.slices.setdefault(slice, []), list[pa.RecordBatch]()
        for batch in batches:
            if batch.num_rows >= _MANY_ROWS:
                self._put(slice, kept, batch, ())
            else:
                small.append(batch)
        if small:
            self.append(slice, small[0] if len(small) == 1 else pa.concat_batches(small))

    def _with_smaller(
        self, slice: int, kept: list[list[Any]], batch: pa.RecordBatch, order: Order
    ) -> pa.RecordBatch:
        """A bundle together with those before it that are not much larger, which it replaces."""
        assert self.merge is not None
        batches, rows, size = [batch], batch.num_rows, batch.nbytes
        mine = [bundle for bundle in kept if origin(tuple(bundle[2])) == origin(order)]
        while mine and mine[-1][1] <= 2 * rows:
            bundle = mine.pop()
            before = self.store.get(self.kind, slice, bundle[0], self.schema)
            rows, size = rows + before.num_rows, size + before.nbytes
            if size > _LARGE:
                break
            kept.remove(bundle)
            self.store.remove(self.kind, slice, bundle[0])
            batches.insert(0, before)
        return batch if len(batches) == 1 else self.merge(batches)

    def _put(self, slice: int, kept: list[list[Any]], batch: pa.RecordBatch, order: Order) -> None:
        number = kept[-1][0] + 1 if kept else 0
        self.store.put(self.kind, slice, number, batch)
        kept.append([number, batch.num_rows, list(order)])

    def load(self, slice: int) -> list[tuple[Order, pa.RecordBatch]]:
        """The bundles of a slice in the order in which they came."""
        return [
            (tuple(order), self.store.get(self.kind, slice, number, self.schema))
            for number, _, order in self.slices.get(slice, ())
        ]

    def one(self, slice: int, number: int) -> pa.RecordBatch:
        """A bundle of a slice."""
        return self.store.get(self.kind, slice, number, self.schema)

    def last(self, slice: int) -> int:
        """The number of the last bundle of a slice; -1 if it has none."""
        kept = self.slices.get(slice)
        return int(kept[-1][0]) if kept else -1

    def remove(self, slice: int, numbers: Sequence[int]) -> None:
        """Forget some bundles of a slice."""
        if numbers:
            left = [bundle for bundle in self.slices[slice] if bundle[0] not in set(numbers)]
            for number in numbers:
                self.store.remove(self.kind, slice, number)
            self.slices[slice][:] = left
            if not left:
                del self.slices[slice]

    def drop(self, slice: int) -> None:
        """Forget a slice."""
        for number, _, _ in self.slices.pop(slice, ()):
            self.store.remove(self.kind, slice, number)

    def pop(self, slice: int) -> list[tuple[Order, pa.RecordBatch]]:
        """The bundles of a slice, which are then forgotten."""
        bundles = self.load(slice)
        self.drop(slice)
        return bundles
