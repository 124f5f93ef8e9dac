"""What the vertices of the network do with bundles and watermarks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from headrace.box.bundle import Bundle
from headrace.errors import EngineError, HeadraceError, StepError
from headrace.kernels.aggregate import by_shard
from headrace.kernels.chain import Chain, as_bundle
from headrace.kernels.expressions import compile_expression, evaluate
from headrace.kernels.join import TemporalJoin, equi_join, sharded
from headrace.kernels.order import Top, order_key, sort_rows
from headrace.plan.nodes import Join, JoinWithin, Sort, TopK
from headrace.windows import FOREVER

Task = Callable[[], None]
Phases = Iterator[list[Task]]
"""Work of a watermark: lists of tasks that run in parallel, one list after the other."""


class Out:
    """Where a transform puts what it makes of a bundle or a watermark."""

    __slots__ = ("bundles", "epoch", "lane", "order", "watermark", "worker")

    def __init__(self, epoch: int, order: tuple[int, ...], worker: int, lane: int = 0) -> None:
        self.epoch, self.order, self.worker, self.lane = epoch, order, worker, lane
        self.bundles: list[Bundle] = []
        self.watermark: int | None = None
        """What to tell those downstream, set before ``on_watermark``; None cancels it."""

    def emit(self, batch: pa.RecordBatch, order: tuple[int, ...] | None = None) -> None:
        """Send records on."""
        if batch.num_rows:
            place = (*self.order, len(self.bundles)) if order is None else order
            self.bundles.append(Bundle(batch, place, self.epoch))


class Transform:
    """One operator: what it does with records and with watermarks (StreamBox §2, figure 1b).

    Subclass it and pass a function that makes one to ``stream.transform``:

        class Largest(Transform):
            def __init__(self):
                self.lock, self.best = threading.Lock(), None

            def process(self, bundle, out):
                largest = pc.max(bundle["value"]).as_py()
                with self.lock:
                    self.best = largest if self.best is None else max(self.best, largest)

            def on_watermark(self, time, out):
                out.emit(pa.record_batch({"value": [self.best]}))

    The engine promises, and a transform must keep to, this:

    - ``process`` is called once for every bundle, from several threads at once and in any order,
      even for bundles of different epochs. State it shares must be guarded.
    - ``on_watermark(time, out)`` is called after every bundle of the epoch has been processed, one
      call at a time and with increasing times. No record older than ``time`` comes afterwards;
      bundles of later epochs may be processed meanwhile, or may have been already.
    - What is emitted must not be older than the watermark last passed on. A transform that holds
      records back must emit them before it lets the watermark pass them: ``out.watermark`` is what
      goes downstream, the same time unless you set it lower, or to None for nothing.
    - The last watermark is ``headrace.windows.FOREVER``: the input has ended, or is being drained.
    """

    def process(self, bundle: pa.RecordBatch, out: Out) -> None:
        """Take a bundle of records; emit any number of bundles."""
        raise NotImplementedError

    def on_watermark(self, time: int, out: Out) -> Phases | None:
        """No record older than ``time`` (microseconds since 1970) will come any more."""


class CustomStep:
    """A person's own transform, and the steps before it."""

    def __init__(self, transform: Transform, chain: Chain, schema: pa.Schema, label: str) -> None:
        for method in ("process", "on_watermark"):
            if not callable(getattr(transform, method, None)):
                raise StepError(f"{label}: {transform!r} has no {method}; see headrace.Transform")
        self.transform, self.chain, self.schema, self.label = transform, chain, schema, label

    def process(self, bundle: Bundle, out: Out) -> None:
        for batch in self.chain.bundles(selected(bundle.batch, self.chain)):
            self._called(out, self.transform.process, batch)

    def on_watermark(self, time: int, out: Out) -> None:
        self._called(out, self.transform.on_watermark, time)

    def _called(self, out: Out, method: Callable[..., Any], argument: Any) -> None:
        first = len(out.bundles)
        try:
            phases = method(argument, out)
            if phases is not None:  # a generator of tasks, as our own transforms have them
                for tasks in phases:
                    for task in tasks or ():
                        task()
            for bundle in out.bundles[first:]:
                bundle.batch = as_bundle(bundle.batch, self.schema)
        except HeadraceError:
            raise
        except Exception as error:
            raise StepError(f"{self.label} failed: {type(error).__name__}: {error}") from error


class Stateless:
    """A chain of narrow steps."""

    def __init__(self, chain: Chain, lanes: int = 1) -> None:
        self.chain, self.lanes = chain, lanes

    def process(self, bundle: Bundle, out: Out) -> None:
        if self.lanes > 1:
            out.order = (out.lane, *bundle.order)
        for batch in self.chain.bundles(selected(bundle.batch, self.chain)):
            out.emit(batch)

    def on_watermark(self, time: int, out: Out) -> None:
        """A watermark passes through."""


def selected(batch: pa.RecordBatch, chain: Chain) -> pa.RecordBatch:
    """The columns a chain reads."""
    if len(chain.columns) == batch.num_columns and tuple(batch.schema.names) == chain.columns:
        return batch
    return batch.select(list(chain.columns))


class Held:
    """Bundles kept in input order until the input ends."""

    def __init__(self) -> None:
        self.parts: list[Bundle] = []
        self.nbytes = 0

    def add(self, bundle: Bundle) -> None:
        self.parts.append(bundle)
        self.nbytes += bundle.nbytes

    def take(self, schema: pa.Schema) -> pa.RecordBatch:
        """All records in input order, as one bundle."""
        parts, self.parts, self.nbytes = self.parts, [], 0
        parts.sort(key=lambda b: b.order)
        if not parts:
            return pa.RecordBatch.from_pylist([], schema)
        try:
            return pa.concat_batches([p.batch for p in parts])
        except pa.ArrowInvalid as error:
            raise EngineError(
                "a sort, a join or a key_by on the box holds at most 2 GB of text in a column "
                f"({error}); run it on Spark, or drop columns before it"
            ) from error


class AtEnd:
    """A transform of bounded input: it takes all, and gives its result when the input ends."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.held = chain, Held()

    @property
    def nbytes(self) -> int:
        return self.held.nbytes

    def process(self, bundle: Bundle, out: Out) -> None:
        for i, batch in enumerate(self.chain.bundles(selected(bundle.batch, self.chain))):
            if batch.num_rows:
                self.held.add(Bundle(batch, (*bundle.order, i), bundle.epoch))

    def on_watermark(self, time: int, out: Out) -> Phases | None:
        if time < FOREVER:
            out.watermark = None
            return None
        return self.finish(out)

    def finish(self, out: Out) -> Phases | None:
        """Emit the result."""
        raise NotImplementedError


PIECE = 1 << 16
"""The records of a large result, a bundle."""


def in_pieces(batch: pa.RecordBatch, out: Out) -> None:
    """Emit a large result as bundles of ordinary size, in order."""
    for i, start in enumerate(range(0, batch.num_rows, PIECE)):
        out.emit(batch.slice(start, PIECE), (i,))


class SortAll(AtEnd):
    """All records in an order."""

    def __init__(self, chain: Chain, node: Sort, zone: str) -> None:
        super().__init__(chain)
        self.order = [(compile_expression(t, chain.schema, zone), down) for t, down in node.order]

    def finish(self, out: Out) -> None:
        batch = self.held.take(self.chain.schema)
        keys = [order_key(evaluate(k, batch)) for k, _ in self.order]
        in_pieces(batch.take(pa.array(sort_rows(keys, [d for _, d in self.order]))), out)


class FirstRecords(AtEnd):
    """The first records of the input; of each bundle no more than that are kept."""

    def __init__(self, chain: Chain, count: int) -> None:
        super().__init__(chain)
        self.count = count
        self.lock = threading.Lock()
        self.kept = 0

    def process(self, bundle: Bundle, out: Out) -> None:
        left = self.count
        for i, batch in enumerate(self.chain.bundles(selected(bundle.batch, self.chain))):
            if left <= 0:
                return
            part = batch.slice(0, left)
            left -= part.num_rows
            with self.lock:
                self.held.add(Bundle(part, (*bundle.order, i), bundle.epoch))
                self.kept += part.num_rows
                if self.kept > 4 * self.count + PIECE:
                    self._cut()

    def _cut(self) -> None:
        self.held.parts.sort(key=lambda b: b.order)
        kept: list[Bundle] = []
        rows = 0
        for bundle in self.held.parts:
            if rows >= self.count:
                break
            kept.append(bundle)
            rows += bundle.batch.num_rows
        self.held.parts, self.kept = kept, rows

    def finish(self, out: Out) -> None:
        in_pieces(self.held.take(self.chain.schema).slice(0, self.count), out)


class BringTogether(AtEnd):
    """All records of a key in one bundle, in input order."""

    def __init__(self, chain: Chain, keys: tuple[str, ...], shards: int) -> None:
        super().__init__(chain)
        self.keys, self.shards = keys, shards

    def finish(self, out: Out) -> None:
        batch = self.held.take(self.chain.schema)
        keys = [batch.column(k) for k in self.keys]
        for shard, part in by_shard(batch, keys, self.shards):
            out.emit(part, (shard,))


class TopRecords(AtEnd):
    """The first ``k`` records in an order, of each key or of all."""

    def __init__(self, chain: Chain, node: TopK, zone: str) -> None:
        super().__init__(chain)
        self.node = node
        order = [(compile_expression(t, chain.schema, zone), down) for t, down in node.order]
        self.order = [(_evaluates(kernel), down) for kernel, down in order]
        self.tops: dict[int, Top] = {}

    def _top(self) -> Top:
        return Top(self.chain.schema, self.node.k, self.order, self.node.keys)

    def process(self, bundle: Bundle, out: Out) -> None:
        top = self.tops.get(out.worker)
        if top is None:
            top = self.tops.setdefault(out.worker, self._top())
        for batch in self.chain.bundles(selected(bundle.batch, self.chain)):
            top.add(batch)

    def finish(self, out: Out) -> None:
        whole = self._top()
        for top in self.tops.values():
            whole.add(top.bundle())
        self.tops = {}
        in_pieces(whole.bundle(), out)


def _evaluates(kernel: Any) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: evaluate(kernel, batch)


class BothSides:
    """A join of bounded inputs: when both have ended, shard by shard."""

    def __init__(self, node: Join, chains: tuple[Chain, Chain], shards: int) -> None:
        self.node, self.chains, self.shards = node, chains, shards
        self.sides = (Held(), Held())
        self.lock = threading.Lock()
        self.ended = 0

    @property
    def nbytes(self) -> int:
        return sum(side.nbytes for side in self.sides)

    def process(self, bundle: Bundle, out: Out) -> None:
        chain = self.chains[out.lane]
        for i, batch in enumerate(chain.bundles(selected(bundle.batch, chain))):
            self.sides[out.lane].add(Bundle(batch, (*bundle.order, i), bundle.epoch))

    def on_watermark(self, time: int, out: Out) -> Phases | None:
        if time < FOREVER:
            out.watermark = None
            return None
        with self.lock:
            self.ended += 1
            last = self.ended == 2
        return self._joined(out) if last else None

    def _joined(self, out: Out) -> Phases:
        names = (self.node.left_on, self.node.right_on)
        parts: list[dict[int, pa.RecordBatch]] = []
        for side, chain, keys in zip(self.sides, self.chains, names, strict=True):
            batch = side.take(chain.schema)
            parts.append(dict(sharded(batch, keys, self.shards, drop_null=False)))
        empty = [pa.RecordBatch.from_pylist([], c.schema) for c in self.chains]

        def task(shard: int) -> Task:
            def run() -> None:
                sides = [p.pop(shard, e) for p, e in zip(parts, empty, strict=True)]
                out.emit(equi_join(self.node, *sides), (shard,))

            return run

        yield [task(s) for s in sorted(set(parts[0]) | set(parts[1]))]


class Within:
    """The temporal join: both sides at once, by shard of the keys (StreamBox §5.3)."""

    def __init__(self, node: JoinWithin, chains: tuple[Chain, Chain], shards: int) -> None:
        self.node, self.chains = node, chains
        self.keys = (node.left_on, node.right_on)
        self.shards = [(threading.Lock(), TemporalJoin(node)) for _ in range(shards)]

    @property
    def nbytes(self) -> int:
        return sum(join.nbytes for _, join in self.shards)

    def process(self, bundle: Bundle, out: Out) -> None:
        side, chain = out.lane, self.chains[out.lane]
        for batch in chain.bundles(selected(bundle.batch, chain)):
            parts = sharded(batch, self.keys[side], len(self.shards), drop_null=True)
            for shard, part in rotated(list(parts), out.worker):
                lock, join = self.shards[shard]
                with lock:
                    found = join.add(side, part)
                for pairs in found:
                    out.emit(pairs)

    def on_watermark(self, time: int, out: Out) -> None:
        for lock, join in self.shards:
            with lock:
                join.forget(out.lane, time)


def rotated(items: list[Any], by: int) -> Iterable[Any]:
    """The items from another place on for each worker, so that they seldom meet at a lock."""
    cut = by % len(items) if items else 0
    return items[cut:] + items[:cut]
