"""The processor that Spark's ``transformWithState`` calls for a level, light to import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorHandleState
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from headrace.spark.python.failures import carrying
from headrace.spark.python.shipping import Shipped

# Types and not text: Spark would have each task ask the JVM what the text means.
_NOTE = StructType().add("value", StringType())
_PART = (
    StructType()
    .add("operator", IntegerType())
    .add("kind", IntegerType())
    .add("slice", LongType())
    .add("number", LongType())
)
_BUNDLE = StructType().add("value", BinaryType())
_RowOf = SparkRow("shard", "target", "lane", "slice", "place", "bundle")


def _quiet() -> None:
    """Spark's worker that learns of a processor's state on the driver prints what it does."""
    main = sys.modules.get("__main__")
    if str(getattr(main, "__file__", "")).endswith("transform_with_state_driver_worker.py"):
        vars(main)["print"] = lambda *words: None


_quiet()


class LateMap:
    """A map of Spark's state that a task asks for when it first uses it.

    To make one takes a task some milliseconds, and most micro-batches do without. Spark makes them
    in ``init`` alone, so that it is taken back there for a moment.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.client: Any = getattr(handle, "_statefulProcessorApiClient", None)
        self.made: Any = None
        if getattr(self.client, "handle_state", None) is not StatefulProcessorHandleState.CREATED:
            self.made = self._make()  # on the driver, which tells the JVM what there is

    def __getattr__(self, name: str) -> Any:
        if self.made is None:
            self.client.set_handle_state(StatefulProcessorHandleState.CREATED)
            self.made = self._make()
            self.client.set_handle_state(StatefulProcessorHandleState.INITIALIZED)
        return getattr(self.made, name)

    def _make(self) -> Any:
        return self.handle.getMapState("bundles", _PART, _BUNDLE)


class Level(StatefulProcessor):
    """Runs the operators of a level on each shard, once in a micro-batch."""

    def __init__(self, shipped: Shipped) -> None:
        self.shipped = shipped

    def init(self, handle: Any) -> None:
        """Spark tells where the state is."""
        self.note = handle.getValueState("note", _NOTE)
        self.parts = LateMap(handle)

    def close(self) -> None:
        """Nothing is held."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        with carrying():
            saved = self.note.get()
            note = None if saved is None else saved[0]
            made = self.shipped.load().run(key[0], rows, note, self.parts, self._save)
            for row in made:
                yield _RowOf(*row)

    def _save(self, note: str) -> None:
        self.note.update((note,))
