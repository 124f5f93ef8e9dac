"""``transform``: an operator of a person's own, the same on both engines."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.errors import HeadraceError, StepError
from headrace.kernels.aggregate import by_shard
from headrace.kernels.chain import as_bundle, compile_chain
from headrace.kernels.rows import FAILURES, reason_of
from headrace.operators.operator import (
    Hosting,
    Input,
    Kind,
    Operator,
    Part,
    PassedOn,
    Result,
    State,
)
from headrace.operators.stores import Note, Order, Store
from headrace.plan.custom import Custom
from headrace.plan.fingerprint import fingerprint
from headrace.types import arrow_table, to_schema
from headrace.windows import BEGINNING


class Out:
    """Where a ``Transform`` puts what it makes of records or of a watermark."""

    def __init__(self, watermark: int | None = None) -> None:
        self.batches: list[Any] = []
        self.watermark = watermark
        """In ``on_watermark``: what to tell those downstream; set it lower to hold it back."""

    def emit(self, records: Any) -> None:
        """Send records on: a record batch, a table, a pandas or Polars frame."""
        self.batches.append(records)


class Transform:
    """An operator of your own, with state by key: what it does with records and with watermarks.

    Subclass it and pass the class, or a function that makes one, to ``transform``. This one counts
    what each user has bought so far, and tells every hour:

        class Bought(hr.Transform):
            def process(self, bundle, out):
                known = [self.store["bought"]] if "bought" in self.store else []
                table = pa.concat_tables([*known, arrow_table(bundle).select(["user", "price"])])
                totals = table.group_by("user").aggregate([("price", "sum")])
                self.store["bought"] = totals.rename_columns(["user", "price"])

            def on_watermark(self, time, out):
                if "bought" in self.store:
                    out.emit(self.store["bought"])

        sales.key_by("user").transform(Bought)

    There is one of it for each shard of the keys, and the calls of one come one after the other:
    nothing needs a lock. After ``key_by`` all records of a key go to the same one; without, there
    is only one. The engines promise, and a transform must keep to, this:

    - ``process`` is called for every bundle, in any order and with bundles of any size.
    - ``on_watermark(time, out)`` is called as the watermark moves on, once there has been a record
      (without a key, even if there was none): no record older than ``time``
      (microseconds since 1970) comes afterwards. Bundles of later records may have come already.
      The last is ``headrace.windows.FOREVER``: the input has ended, or is being drained.
    - What must not be forgotten is in ``store``, tables by name, which a checkpoint keeps.
      Attributes may be lost between two calls: on Spark, an instance lives for one micro-batch.
    - What is emitted must not be older than the watermark last passed on. A transform that holds
      records back holds the watermark back as well: it sets ``out.watermark`` to what it promises.
    """

    store: MutableMapping[str, pa.Table]
    """What is remembered, by name."""
    partial: ClassVar[Callable[[pa.RecordBatch], Any] | None] = None
    """A static method of a bundle that runs where records are read, before they go to their shard.

    It may filter or shorten the bundle, and must keep the keys; ``part_schema`` says which columns
    it gives, where they are not the same.
    """
    part_schema: ClassVar[Any] = None

    def process(self, bundle: pa.RecordBatch, out: Out) -> None:
        """Take a bundle of records; emit any number of bundles."""
        raise NotImplementedError

    def on_watermark(self, time: int, out: Out) -> None:
        """No record older than ``time`` will come any more."""


class CustomOperator(Operator):
    """A person's own transform, and the steps before it."""

    of: ClassVar[type | None] = Custom
    emits_early: ClassVar[bool] = True
    every_watermark: ClassVar[bool] = True

    def __init__(self, node: Custom, inputs: Sequence[Input], zone: str) -> None:
        self.node: Custom = node
        self.chains = (compile_chain(inputs[0].steps, inputs[0].schema, None, zone),)
        self.is_keyed = bool(node.keys)
        self.label = f"{node.label} ({node.detail})"
        example = self.make()
        self.shorten = type(example).partial
        self.parts = self.chains[0].schema
        if self.shorten is not None and example.part_schema is not None:
            self.parts = to_schema(example.part_schema)
            lost = [k for k in node.keys if k not in self.parts.names]
            if lost:
                raise StepError(f"{self.label}: part_schema has no column '{lost[0]}', a key")

    def make(self) -> Transform:
        """A fresh one of the person's."""
        try:
            transform = self.node.make()
        except Exception as error:
            raise StepError(f"{self.label} could not be made: {error}") from error
        if not isinstance(transform, Transform):
            raise StepError(f"{self.label} gave {transform!r}, which is not a headrace.Transform")
        return transform

    def part_schema(self, lane: int, slice: int) -> pa.Schema:
        return self.parts

    def partial(self, lane: int, hosting: Hosting) -> PassedOn:
        shards = hosting.shards if self.is_keyed else 1

        def keys(batch: pa.RecordBatch) -> list[pa.Array]:
            return [batch.column(k) for k in self.node.keys]

        def split(batch: pa.RecordBatch, order: Order) -> Iterator[tuple[int, Part]]:
            if self.shorten is not None:
                short = self.called(self.shorten, batch)
                batch = self.called(as_bundle, short, self.parts)
            for shard, part in by_shard(batch, self.called(keys, batch), shards):
                yield shard, Part(0, part, order)

        return PassedOn(split)

    def called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a person's function gives; its errors name the step."""
        try:
            return function(*arguments)
        except HeadraceError:
            raise
        except FAILURES as error:
            raise StepError(f"{self.label} failed: {reason_of(error)}") from error

    def state(self, store: Store, note: Note) -> CustomState:
        return CustomState(self, store, note)

    def advances(self, before: int, now: int) -> bool:
        return True

    def kinds(self) -> dict[int, Kind]:
        return {0: Kind("tables of its own", _STORED, None)}

    def describe(self) -> Any:
        made = type(self.make())
        methods = [v for _, v in sorted(vars(made).items()) if callable(v)]
        written = fingerprint(*methods)
        return replace(super().describe(), keeps=(), functions=f"{made.__name__} {written}")


class CustomState(State):
    """One shard of a person's transform."""

    def __init__(self, operator: CustomOperator, store: Store, note: Note) -> None:
        self.operator, self.note = operator, note
        self.transform = operator.make()
        self.transform.store = NamedTables(store, note)

    def take(self, parts: Iterable[Part], watermarks: Sequence[int]) -> Iterator[Result]:
        transform, keyed = self.transform, self.operator.is_keyed
        note = self.note
        for part in parts:
            note["used"] = True
            yield from self._given(transform.process, part.batch, Out(), 0)
        before: int = note.get("watermark", BEGINNING)
        now = watermarks[0]
        if now <= before:
            return
        note["watermark"] = now
        out = Out(now)
        if note.get("used") or not keyed:  # else it has no keys to tell of
            yield from self._given(transform.on_watermark, now, out, now)
        note["promised"] = max(note.get("promised", BEGINNING), self._held(out, now))

    def _held(self, out: Out, now: int) -> int:
        """What a transform promises downstream."""
        label = self.operator.label
        if out.watermark is None:
            return BEGINNING
        try:
            held = operator.index(out.watermark)
        except TypeError:
            raise StepError(
                f"{label} set out.watermark to {out.watermark!r}; it is in microseconds since 1970"
            ) from None
        if held > now:
            raise StepError(f"{label} promised a watermark after the one it was told")
        return held

    def _given(
        self, call: Callable[..., Any], what: Any, out: Out, number: int
    ) -> Iterator[Result]:
        called, schema = self.operator.called, self.operator.node.schema
        called(call, what, out)
        for batch in out.batches:
            bundle = called(as_bundle, batch, schema)
            if bundle.num_rows:
                yield number, bundle

    def promised(self, watermark: int) -> int:
        held: int = self.note.get("promised", BEGINNING)
        return min(held, watermark)


class NamedTables(MutableMapping[str, pa.Table]):
    """A store as tables by name: each is a bundle with its own columns."""

    def __init__(self, store: Store, note: Note) -> None:
        self.store = store
        self.names: dict[str, int] = note.setdefault("names", {})

    def __getitem__(self, name: str) -> pa.Table:
        stored = self.store.get(0, 0, self.names[name], _STORED)
        return pa.ipc.open_stream(stored.column(0)[0].as_buffer()).read_all()

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __setitem__(self, name: str, table: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} names a table of the store; a name is text")
        number = self.names.get(name)
        if number is None:
            number = self.names[name] = max(self.names.values(), default=-1) + 1
        table = arrow_table(table)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = pa.array([sink.getvalue().to_pybytes()], pa.binary())
        self.store.put(0, 0, number, pa.RecordBatch.from_arrays([data], schema=_STORED))

    def __delitem__(self, name: str) -> None:
        self.store.remove(0, 0, self.names.pop(name))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.names))

    def __len__(self) -> int:
        return len(self.names)


_STORED = pa.schema([pa.field("table", pa.binary())])
