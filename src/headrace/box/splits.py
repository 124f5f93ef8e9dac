"""The splits of a source as the box reads them: where each begins, and what its items become."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import EngineError, HeadraceError
from headrace.io.offsets import Followed, OffsetSource, Once
from headrace.io.source import Split, as_split, at_most, sequences
from headrace.kernels.chain import Chain, compile_chain
from headrace.kernels.expressions.codes import coded_schema
from headrace.plan.node import Narrow
from headrace.plan.sources import Read
from headrace.plan.time import EventTime
from headrace.types import normal_batch

_MOST = 64
END = object()
"""What comes after the last item of a split."""


class Splits:
    """The splits of a source, and the steps that are done where they are read."""

    def __init__(
        self, node: EventTime | Read, columns: Sequence[str] | None, zone: str = "UTC"
    ) -> None:
        steps: list[Narrow] = []
        step: Any = node
        while isinstance(step, Narrow):
            steps.append(step)
            step = step.input
        assert isinstance(step, Read)
        self.source = step.source
        self.name = str(self.source)
        self.in_order = isinstance(node, EventTime) and not node.is_never_late
        """Whether watermarks depend on the order of a split's records, so that one reader reads
        them all."""
        self.bounded = bool(self.source.bounded)
        self.chain: Chain = compile_chain(steps[::-1], step.schema, columns, zone)
        self.wanted = pa.schema([step.schema.field(c) for c in self.chain.columns])
        self.schema = self.chain.schema
        self.coded: frozenset[str] = frozenset()
        """The text columns that are given coded."""
        self.offsets: OffsetSource | None = None
        """The source by its positions, where there is a checkpoint."""
        self.saved: Mapping[str, Any] = {}
        """What a checkpoint kept of the source."""
        self.only_now = False
        self.all: list[Split] = []
        self.memory: int | None = None

    def give_coded(self, names: frozenset[str]) -> None:
        """Give some text columns coded."""
        self.coded, self.wanted = names, coded_schema(self.wanted, names)

    def hold_at_most(self, memory: int) -> None:
        """Limit the memory that reading a split takes to about ``nbytes``."""
        self.memory, self.source = memory, self.source.with_memory(memory)

    def by_positions(
        self, offsets: OffsetSource, saved: Mapping[str, Any], folder: str | None, only_now: bool
    ) -> None:
        """Read by positions, from those of a checkpoint if there are any.

        With ``only_now`` read no further than there is now.
        """
        self.saved, self.only_now = saved, only_now
        if not isinstance(offsets, Once):  # which is read as it is, and counts when it has ended
            self.bounded = False
        self.offsets = copy.copy(offsets).in_small_steps()
        if self.memory is not None:
            self.offsets = self.offsets.with_memory(self.memory)
        if folder is not None:
            self.offsets.keep_in(folder)

    @property
    def is_read_once(self) -> bool:
        """Whether it has no positions but its beginning and its end."""
        return isinstance(self.offsets, Once)

    def find(self, workers: int) -> list[Split]:
        """All of them."""
        # With event time a split's order matters, so it must not depend on the number of workers.
        parallel = workers if self.bounded and not self.in_order else 1
        try:
            found = self._found(parallel)
        except HeadraceError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if self.in_order and self.bounded:
            found = at_most(sequences(found), _MOST)
        self.all = found
        return found

    def _found(self, parallel: int) -> list[Split]:
        if self.saved.get("ended"):
            return []
        if self.offsets is not None and not self.is_read_once:
            at = self.saved.get("at") or {}
            at = {**at, **{n: p for n, p in self.offsets.initial().items() if n not in at}}
            return [Followed(self.offsets.only(n), n, p, self.only_now) for n, p in at.items()]
        splits = self.source.splits(parallel)
        return [as_split(s).with_codes(self.coded) for s in splits] if self.coded else [*splits]

    def open(self, number: int) -> Iterator[Any]:
        """The items of a split."""
        try:
            return iter(self.all[number].read(list(self.chain.columns)))
        except HeadraceError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def next(self, items: Iterator[Any]) -> Any:
        """The next of them, or ``END``."""
        try:
            return next(items, END)
        except HeadraceError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def batches(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Records as the steps before ``event_time`` leave them."""
        batch = normal_batch(batch, self.wanted)
        batches = list(self.chain.bundles(batch)) if self.chain.runs else [batch]
        return [batch for batch in batches if batch.num_rows]

    def close(self) -> None:
        """Give back what the source holds."""
        source = self.offsets or self.source
        if isinstance(source, OffsetSource):
            with contextlib.suppress(Exception):
                source.close()

    def _failed(self, error: Exception) -> EngineError:
        return EngineError(f"reading {self.name} failed: {type(error).__name__}: {error}")
