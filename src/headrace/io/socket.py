"""Lines of text from a TCP socket.

A socket cannot be read twice. So what comes is written to a log first, where an engine gives a
place for it, and read from there; a line that was logged is not lost when the job is killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import EngineError, PlanError
from headrace.io.files import LOCAL, filesystem
from headrace.io.offsets import OffsetSource, Positions, most_at_once
from headrace.io.source import Split
from headrace.io.text import SCHEMA, lines_of
from headrace.sizes import is_whole

_ALL = "lines"
_AT_ONCE = 8 << 20
_AGAIN = 1.0
"""How long to wait before connecting again, in seconds."""


@dataclass(frozen=True, eq=False)
class SocketSource(OffsetSource):
    """The lines a server sends, in the column ``line``. A position is a number of bytes.

    A connection that is refused or closed is tried again every second; lines sent meanwhile are
    the server's to keep. A line counts once its end has come.
    """

    host: str
    port: int
    limit: int | None = None
    schema = SCHEMA

    @staticmethod
    def open(host: str, port: int, *, limit: int | None = None) -> SocketSource:
        if not is_whole(port, 1, 65535):
            raise PlanError(f"read_socket: port={port!r} is not a port")
        return SocketSource(str(host), port, most_at_once(limit, "read_socket"))

    def __str__(self) -> str:
        return f"lines from {self.host}:{self.port}"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_received"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def received(self) -> Received:
        """What has come so far; the first call connects."""
        found: Received | None = self.__dict__.get("_received")
        if found is None:
            found = Received(self.host, self.port)
            object.__setattr__(self, "_received", found)
        return found

    def keep_in(self, folder: str) -> None:
        system, root = filesystem(folder)
        if system is not LOCAL:
            raise PlanError(
                f"{self} is logged beside the checkpoint before it is read, and {folder!r} is not "
                "a local folder; give a checkpoint on this machine's disk"
            )
        self.received.keep_in(Path(root))

    def initial(self) -> Positions:
        return {_ALL: 0}

    def available(self, since: Positions) -> Positions:
        log = self.received
        log.refuse_shorter(since[_ALL])
        log.connect()
        return {_ALL: log.whole_lines(since[_ALL])}

    def step(self, since: Positions, end: Positions) -> Positions:
        return {_ALL: self.received.some_lines(since[_ALL], end[_ALL], self.limit)}

    def between(
        self, start: Positions, end: Positions, parallelism: int
    ) -> Sequence[tuple[str, Split]]:
        a, b = start[_ALL], end[_ALL]
        return [(_ALL, _Lines(self.received.data(a, b)))] if b > a else []

    def forget(self, upto: Positions) -> None:
        self.received.forget(upto[_ALL])

    def close(self) -> None:
        received: Received | None = self.__dict__.pop("_received", None)
        if received is not None:
            received.close()


@dataclass(frozen=True)
class _Lines(Split):
    """Lines that travel with the split itself, for a worker anywhere."""

    data: bytes

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([lines_of(pa.py_buffer(self.data))], schema=SCHEMA)


class Received:
    """Bytes as they came, in memory or in a file, by their places in the stream."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.lock = threading.Lock()
        self.held = bytearray()
        self.first = 0
        """The place of the first byte that is held."""
        self.logged = 0
        """How many of the buffered bytes are in the file already; always whole lines."""
        self.file: Any = None
        self.thread: threading.Thread | None = None
        self.link: socket.socket | None = None
        self.is_closed = False

    def keep_in(self, folder: Path) -> None:
        """Go on from a log of earlier, and write down what comes."""
        folder.mkdir(parents=True, exist_ok=True)
        with self.lock:
            older = sorted(folder.glob("bytes-*"))
            for path in older:  # a kill may have left two that overlap
                at = int(path.name.split("-")[1])
                if not self.held:
                    self.first = at
                if at > self.first + len(self.held):
                    raise _gone(folder, self.first + len(self.held))
                self.held[at - self.first :] = _unframed(path)
            self._write_anew(folder, older)

    def connect(self) -> None:
        """Begin to receive, unless that has begun."""
        with self.lock:
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._receive, daemon=True)
                self.thread.start()

    def close(self) -> None:
        """Receive no more."""
        self.is_closed = True
        link = self.link
        if link is not None:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> None:
        while not self.is_closed:
            with contextlib.suppress(OSError):
                self._listen()
            with self.lock:  # a line that was cut off is the server's to send again
                del self.held[self.held.rfind(b"\n") + 1 :]
            if not self.is_closed:
                time.sleep(_AGAIN)

    def _listen(self) -> None:
        with socket.create_connection((self.host, self.port), timeout=10) as link:
            link.settimeout(None)
            self.link = link
            while not self.is_closed and (data := link.recv(1 << 16)):
                self._take(data)

    def _take(self, data: bytes) -> None:
        with self.lock:
            self.held += data
            self._log()

    def _log(self) -> None:
        """Write down the lines whose end has come."""
        end = self.held.rfind(b"\n") + 1
        if self.file is not None and end > self.logged:
            self.file.write(_framed(bytes(self.held[self.logged : end])))
            self.logged = end

    def _write_anew(self, folder: Path, older: list[Path]) -> None:
        """What is held as one file, there before those it stands for are removed."""
        path = folder / f"bytes-{self.first:020d}"
        beside = folder / f"part-{self.first:020d}"
        self.logged = self.held.rfind(b"\n") + 1
        with beside.open("wb") as file:
            file.write(_framed(bytes(self.held[: self.logged])))
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
        for old in older:
            if old != path:
                old.unlink()
        if self.file is not None:
            self.file.close()
        self.file = path.open("ab", buffering=0)

    def refuse_shorter(self, upto: int) -> None:
        """Refuse a log that has lost its end: bytes up to ``upto`` have been read."""
        with self.lock:
            end = self.first + len(self.held)
            if not self.first <= upto <= end and self.file is not None:
                raise _gone(Path(self.file.name).parent, end)

    def whole_lines(self, since: int) -> int:
        """Where the last whole line ends."""
        with self.lock:
            start = since - self.first
            end = self.held.rfind(b"\n", start) + 1
            if end <= start:
                return since
            if self.file is not None:
                os.fsync(self.file.fileno())  # what is promised must not be lost
            return self.first + end

    def some_lines(self, since: int, upto: int, limit: int | None) -> int:
        """Where a few megabytes of whole lines end, at most so many lines on."""
        with self.lock:
            start, last = since - self.first, upto - self.first
            if last - start <= _AT_ONCE:
                end = last
            else:
                end = self.held.rfind(b"\n", start, start + _AT_ONCE) + 1
                end = end or self.held.find(b"\n", start) + 1  # a line longer than all that
            at = start
            for _ in range(limit or 0):
                found = self.held.find(b"\n", at, end)
                if found < 0:
                    break
                at = found + 1
            return self.first + (end if limit is None else at)

    def data(self, start: int, end: int) -> bytes:
        with self.lock:
            if start < self.first or end > self.first + len(self.held):
                raise OSError(
                    f"the log of {self.host}:{self.port} does not have bytes {start} to {end}"
                )
            return bytes(self.held[start - self.first : end - self.first])

    def forget(self, upto: int) -> None:
        """Drop what will not be asked for again, once it is much."""
        with self.lock:
            drop = upto - self.first
            if drop < _AT_ONCE:
                return
            del self.held[:drop]
            self.first = upto
            if self.file is not None:
                old = Path(self.file.name)
                self._write_anew(old.parent, [old])


_HEAD = struct.Struct(">III")
"""Before every piece of a log: its length, its checksum, and a checksum of these two."""


def _framed(data: bytes) -> bytes:
    """A piece of a log."""
    head = _HEAD.pack(len(data), zlib.crc32(data), 0)[:8]
    return head + zlib.crc32(head).to_bytes(4, "big") + data


def _unframed(path: Path) -> bytes:
    """The bytes of a log. A last piece that a kill has cut short counts as not received."""
    data, pieces, at = path.read_bytes(), [], 0
    while at + _HEAD.size <= len(data):
        length, checksum, own = _HEAD.unpack_from(data, at)
        is_whole = zlib.crc32(data[at : at + 8]) == own
        piece = data[at + _HEAD.size : at + _HEAD.size + length]
        if is_whole and len(piece) < length:
            break
        if not is_whole or zlib.crc32(piece) != checksum:
            raise EngineError(
                f"{path} is damaged at byte {at}, and it has lines that were received; put it back "
                "from a copy, or begin anew with another checkpoint"
            )
        pieces.append(piece)
        at += _HEAD.size + length
    return b"".join(pieces)


def _gone(folder: Path, end: int) -> EngineError:
    return EngineError(
        f"{folder}/bytes-{end:020d} is gone, or the file before it is cut short, and they have "
        "lines that were received; put them back from a copy, or begin anew with another checkpoint"
    )
