"""What a process of the box runs: people's functions over the bundles that it is sent.

It ends when its connection does, at the latest with the process that began it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

READY, FAILED = b"ready", b"failed"
_LOOK = 0.5
"""Seconds between looks whether the process that began it is there."""


def packed(batch: pa.RecordBatch) -> pa.Buffer:
    """A bundle as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def unpacked(data: bytes) -> pa.RecordBatch:
    """A bundle of bytes."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)


def _serve(connection: Any) -> None:
    pa.set_cpu_count(1)
    import headrace.kernels.rows  # before the first bundle comes  # noqa: F401

    connection.send_bytes(READY)
    programs: dict[int, Any] = {}
    while True:
        number, program = pickle.loads(connection.recv_bytes())
        if program is not None:
            try:
                programs[number] = pickle.loads(program)
                connection.send_bytes(READY)
            except Exception as error:
                connection.send_bytes(f"{type(error).__name__}: {error}".encode())
            continue
        batch = unpacked(connection.recv_bytes())
        try:
            result = packed(programs[number](batch))
        except Exception:
            connection.send_bytes(FAILED)  # it is run again where its error can be told in full
        else:
            with contextlib.suppress(OSError):  # nobody may read it
                sys.stdout.flush()  # what it printed, before it may be ended
            connection.send_bytes(memoryview(result))


def main(descriptor: int) -> None:
    """Serve until the other end has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began it decides
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        _serve(Connection(descriptor))
