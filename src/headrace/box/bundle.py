"""A bundle: some records of one epoch, the unit of work (StreamBox §7.1)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def bytes_of(batch: pa.RecordBatch) -> int:
    """About how much memory records take.

    To ask a batch itself gives up the interpreter lock, and to get it again takes long where many
    threads are busy.
    """
    return sum(map(_bytes_of, batch.columns))


def _bytes_of(column: pa.Array) -> int:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        places = column.buffers()[1]
        if places is None or len(column) == 0:
            return 0
        first, last = np.frombuffer(places, np.int32)[[column.offset, column.offset + len(column)]]
        return int(last - first) + 4 * len(column)
    if pa.types.is_primitive(kind):
        return int(len(column) * kind.bit_width // 8)
    return int(column.nbytes)


class Bundle:
    """Records, and where they stand.

    ``order`` is their place in the input, which results that follow it are sorted by. ``epoch`` is
    the epoch they arrived in; what is derived from them keeps it, so that a debug run can check
    that none changed epoch. A NUMA node would be one more label here.
    """

    __slots__ = ("batch", "begun", "epoch", "nbytes", "order", "serial")

    def __init__(
        self, batch: pa.RecordBatch, order: tuple[int, ...], epoch: int, nbytes: int | None = None
    ) -> None:
        self.batch, self.order, self.epoch = batch, order, epoch
        self.nbytes = bytes_of(batch) if nbytes is None else nbytes
        """About."""
        self.serial = -1
        """Which of the bundles of a transform it is, where their order matters."""
        self.begun = 0.0
        """When the first transform began with the records it is of."""

    def numbered(self, serial: int) -> Bundle:
        """The same with its place among a transform's bundles."""
        copy = Bundle(self.batch, self.order, self.epoch, self.nbytes)
        copy.serial, copy.begun = serial, self.begun
        return copy

    def __repr__(self) -> str:
        return f"Bundle({self.batch.num_rows} records, epoch {self.epoch}, order {self.order})"
