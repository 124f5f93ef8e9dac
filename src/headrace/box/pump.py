"""Threads that read the splits of input that does not end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from headrace.box.arrival import Reader
from headrace.box.ingress import Ingress
from headrace.box.splits import END
from headrace.io.offsets import Reached, UpToDate


def pump(
    ingress: Ingress,
    reader: Reader,
    wait: Callable[[], bool],
    enter: Callable[[], bool],
    accepted: Callable[[], None],
) -> None:
    """Read a split of an unbounded source until the job stops.

    ``wait`` is for room; ``enter`` waits, with the lock held, until a step may begin. Both are
    false when the job is over.
    """
    reader.items = ingress.splits.open(reader.number)
    try:
        _pump(ingress, reader, reader.items, wait, enter, accepted)
    finally:
        if hasattr(reader.items, "close"):
            reader.items.close()


def _pump(
    ingress: Ingress,
    reader: Reader,
    items: Iterator[Any],
    wait: Callable[[], bool],
    enter: Callable[[], bool],
    accepted: Callable[[], None],
) -> None:
    while wait():
        if ingress.is_over(reader):
            break
        item = ingress.splits.next(items)
        ended = item is END
        if isinstance(item, pa.RecordBatch) and ingress.event is not None:
            with ingress.cascade.lock:
                ingress.promises.arriving(reader)
        item = None if ended else ingress.arrived(reader, item)
        with ingress.cascade.lock:
            begins = not reader.in_step and not ended
            begins = begins and item is not None and not isinstance(item, (Reached, UpToDate))
            if isinstance(item, UpToDate):
                reader.is_up_to_date = True
                break
            if (begins or ended) and not enter():
                break
            if ingress.is_over(reader):  # read, but not taken in: neither counted nor processed
                break
            reader.in_step = reader.in_step or begins
            if isinstance(item, list):
                ingress.gather(reader, item)
            elif isinstance(item, Reached):
                ingress.accept(reader, [item])
            else:
                if ingress.buffer is None:
                    ingress.send_on(reader)
                if not ended:
                    ingress.accept(reader, [item])
            if ended:
                ingress.accept(reader, [])
        accepted()
        if ended:
            return
        if item is None:
            threading.Event().wait(0.001)
    accepted()
