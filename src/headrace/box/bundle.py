"""A bundle: some records of one epoch, the unit of work (StreamBox §7.1)."""

from __future__ import annotations

import pyarrow as pa


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
        self.nbytes = batch.nbytes if nbytes is None else nbytes
        """About; to ask a batch gives up the interpreter lock."""
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
