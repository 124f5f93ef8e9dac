"""Files by path, glob or URI; byte ranges of them that begin and end at a line."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from headrace.errors import BadRecord, EngineError, PlanError, nearest
from headrace.io.sealed import sealed, unsealed
from headrace.sizes import byte_size, show_bytes

BLOCK = 4 << 20
"""Bytes read from a file at a time: the unit that becomes a bundle or a few."""
_MIN_SPLIT, _ONE_A_CORE, _MAX_SPLIT = 4 << 20, 64 << 20, 128 << 20
_COMPRESSED = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True)
class File:
    """A file and its size. ``path`` is local, or a URI such as ``s3://bucket/key``."""

    path: str
    size: int

    @property
    def nbytes(self) -> int:
        """About how many bytes it holds, unpacked."""
        return self.size if self.compression is None else 4 * self.size

    @property
    def compression(self) -> str | None:
        return _COMPRESSED.get(Path(self.path).suffix.lower())

    def open(self) -> Any:
        """The file's bytes, decompressed, as a stream."""
        system, path = filesystem(self.path)
        try:
            if self.compression is None:
                return system.open_input_file(path)
            return system.open_input_stream(path, compression=self.compression)
        except OSError as error:
            raise BadRecord(f"{self.path} cannot be read: {error}") from None


@dataclass(frozen=True)
class Reopen:
    """A source of files as it was opened, to be opened again when they have changed."""

    kind: Any
    where: Any
    options: dict[str, Any]

    def __call__(self) -> Any:
        return self.kind.open(self.where, **self.options)

    def stamps(self) -> list[tuple[str, int, int]]:
        """What tells whether the files are still the same."""
        found = []
        for file in find_files(self.where, "refresh"):
            system, path = filesystem(file.path)
            found.append((file.path, file.size, system.get_file_info(path).mtime_ns or 0))
        return found


def describe_files(kind: str, files: Sequence[File]) -> str:
    """A source of files in a few words."""
    total = sum(f.size for f in files)
    size = f"{total / 1e6:.1f} MB" if total >= 100_000 else f"{total} bytes"
    name = files[0].path if len(files) == 1 else f"{files[0].path} and {len(files) - 1} more"
    return f"{kind} {name} ({size})"


def filesystem(path: str) -> tuple[Any, str]:
    """The file system of a path or URI, and the path within it."""
    scheme, mark, rest = path.partition("://")
    if not mark:
        return LOCAL, os.path.abspath(path)
    if scheme == "file":
        return LOCAL, rest
    system, inside = fs.FileSystem.from_uri(path)
    return system, inside


LOCAL = fs.LocalFileSystem()


def absolute(path: Any) -> str:
    """A path or URI that means the same in every process, whatever folder that is in."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


def sync(system: Any, path: str) -> None:
    """Have a local file or folder on the disk, and not just in memory, before it counts."""
    if system is not LOCAL:
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_files(where: Any, what: str) -> list[File]:
    """The files of a path, glob, folder, URI, or list of these, in a fixed order."""
    single = isinstance(where, (str, os.PathLike))
    if not single and not isinstance(where, Iterable):
        raise PlanError(f"{what}: {where!r} is not a path")
    found: list[File] = []
    for path in [where] if single else where:
        if not isinstance(path, (str, os.PathLike)):
            raise PlanError(f"{what}: {path!r} is not a path")
        try:
            found.extend(_expand(os.fspath(path), what))
        except (pa.ArrowException, OSError) as error:
            raise PlanError(f"{what}: {os.fspath(path)!r} cannot be reached: {error}") from None
    if not found:
        raise PlanError(f"{what}: no path was given")
    return found


def _expand(path: str, what: str) -> list[File]:
    system, inside = filesystem(path)
    if is_glob(path):
        if system is not LOCAL:
            raise PlanError(f"{what}: a glob in {path!r} works on local files only; name a folder")
        matches = matching(inside)
        if not matches:
            raise PlanError(f"{what}: no file matches {path!r}")
        return [File(m, os.path.getsize(m)) for m in matches]
    info = system.get_file_info(inside)
    if info.type == fs.FileType.NotFound:
        folder = Path(inside).parent
        names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        hint = nearest(Path(inside).name, names) if names else ""
        hint = hint if hint.startswith("; did you mean") else "; check the path"
        raise PlanError(f"{what}: there is no file {path!r}{hint}")
    if info.type == fs.FileType.Directory:
        files = visible(system, inside)
        if not files:
            raise PlanError(f"{what}: the folder {path!r} has no files")
        prefix = "" if system is LOCAL else path.partition("://")[0] + "://"
        return [File(prefix + f.path, f.size) for f in sorted(files, key=lambda f: f.path)]
    return [File(inside if system is LOCAL else path, info.size)]


def is_glob(path: str) -> bool:
    """Whether a path is a pattern, and not the name of something that is there."""
    system, inside = filesystem(path)
    return any(c in inside for c in "*?[") and not (system is LOCAL and os.path.exists(inside))


def matching(pattern: str) -> list[str]:
    """The local files of a glob."""
    found = glob.glob(pattern, recursive=True)
    names = ((m, os.path.basename(m)) for m in found if os.path.isfile(m))
    return sorted(m for m, name in names if not name.startswith(("_", ".")))


def visible(system: Any, root: str) -> list[Any]:
    """The files of a folder that are data, and that a job which writes there has committed."""
    found = system.get_file_info(fs.FileSelector(root, recursive=True))
    files = [f for f in found if f.type == fs.FileType.File and not _hidden(f.path, root)]
    if not any(_EPOCH_FILE.fullmatch(f.base_name) for f in files):
        return files
    done: dict[str, int] = {}

    def is_committed(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        match = _EPOCH_FILE.fullmatch(name)
        if match is None:
            return True
        where = f"{folder}/{COMMITS}/{match['job']}.json"
        if where not in done:
            done[where] = committed(system, where)
        return int(match["epoch"]) <= done[where]

    return [f for f in files if is_committed(f.path)]


COMMITS = "_headrace"
"""The folder beside a job's output that says how far it is committed."""
_EPOCH_FILE = re.compile(r"part-(?P<job>[0-9a-f]{12})-(?P<epoch>\d{10})-\d{5}\..*")


def epoch_file(job: str, epoch: int, number: int, suffix: str) -> str:
    """The name of a file that a job wrote in an epoch."""
    return f"part-{job[:12]}-{epoch:010d}-{number:05d}{suffix}"


def epoch_of(path: str, job: str) -> int | None:
    """The epoch in which a job wrote a file; None if it is not one of its files."""
    match = _EPOCH_FILE.fullmatch(path.rpartition("/")[2])
    return int(match["epoch"]) if match and match["job"] == job[:12] else None


def committed(system: Any, path: str) -> int:
    """The last epoch that a job has committed; -1 if none."""
    # Outputs of an older version have no checksums.
    found = load_json(system, path, "it says which files of this folder count", lambda note: True)
    try:
        return -1 if found is None else int(found["epoch"])
    except (KeyError, TypeError, ValueError):
        raise EngineError(
            f"{path} does not say an epoch, and it must say which files of this folder count; put "
            "it back from a copy, or write to another folder with another checkpoint"
        ) from None


def load_json(
    system: Any, path: str, why: str, unsealed_too: Callable[[Any], bool] = lambda value: False
) -> Any:
    """Return what ``save_json`` wrote; None if there is no such file.

    Args:
        system: The file system.
        path: The path in it.
        why: Why the file matters, for the message.
        unsealed_too: Is asked about the value of a file without a checksum; whether to take it.

    Raises:
        EngineError: If the file is not as it was written.
    """
    try:
        with system.open_input_stream(path) as file:
            return unsealed(file.read(), unsealed_too)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise EngineError(
            f"{path} cannot be read ({error}), and {why}; put it back from a copy, or begin anew "
            "with another checkpoint"
        ) from None


def save_json(system: Any, path: str, fields: Mapping[str, Any]) -> None:
    """Replace a file with a JSON object and its checksum, at once."""
    replace_file(system, path, sealed(fields))


@contextlib.contextmanager
def writing(what: str, fix: str) -> Iterator[None]:
    """While something is written: report a full or read-only disk with what could not be written.

    Args:
        what: What is written, such as ``the checkpoint '/data/state'``.
        fix: What the user can do about it.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise EngineError(f"{what} cannot be written: {reason}; {fix}") from error


CHECKPOINT_FIX = "make room or give write access, then start the job again, and it goes on"
"""What to do when a checkpoint cannot be written."""


def replace_file(system: Any, path: str, data: bytes) -> None:
    """Write a file so that it is there whole, or as it was."""
    if system is not LOCAL:
        with system.open_output_stream(path) as out:  # an object store shows it when it is closed
            out.write(data)
        return
    beside = f"{path}.{os.getpid()}.tmp"
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync(LOCAL, os.path.dirname(path))


def _hidden(path: str, root: str) -> bool:
    """Spark's rule, and ours: names that begin with ``_`` or ``.`` are not data."""
    inside = path[len(root) :].strip("/")
    return any(part[:1] in ("_", ".") for part in inside.split("/"))


@dataclass(frozen=True)
class Range:
    """The lines of a file that begin in ``[start, end)``."""

    file: File
    start: int
    end: int

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.end >= self.file.size


def split_size(total: int, parallelism: int) -> int:
    """How many bytes one task reads: one split a core for little input, more of them for much."""
    share = -(-total // max(1, parallelism))
    if share > _ONE_A_CORE:
        share = -(-share // 2)
    return min(_MAX_SPLIT, max(_MIN_SPLIT, share))


def ranges(files: Sequence[File], parallelism: int, splittable: bool = True) -> list[Range]:
    """Files cut so that every core has work, and no task is large."""
    size = split_size(sum(f.size for f in files), parallelism)
    out: list[Range] = []
    for file in files:
        pieces = 1
        if splittable and file.compression is None and file.size > size:
            pieces = -(-file.size // size)
        edges = [file.size * i // pieces for i in range(pieces + 1)]
        out.extend(Range(file, a, b) for a, b in pairwise(edges))
    return out


MAX_LINE = "64MB"
"""The longest line that is read, unless told; a longer one is a bad record."""


def line_limit(max_line: Any, where: str) -> int:
    """A checked ``max_line``."""
    longest = byte_size(max_line, f"{where}: max_line")
    if longest > 1 << 30:
        raise PlanError(f"{where}: max_line={max_line!r} is more than a line can have, 1GB")
    return longest


@dataclass(frozen=True)
class LongLine:
    """A line that is too long to read: how long it is, and how it begins."""

    size: int
    head: bytes

    def reason(self, longest: int) -> str:
        return f"the line has {show_bytes(self.size)}, more than max_line={show_bytes(longest)}"


def blocks(part: Range, longest: int = byte_size(MAX_LINE, "")) -> Iterator[pa.Buffer | LongLine]:
    """Whole lines of a range, a few megabytes at a time; the last line may lack its end.

    A line belongs to the range it begins in, so a range skips the line that runs into it and
    finishes the line that runs out of it. A line longer than ``longest`` is told, and not read.
    """
    for found in _blocks(part, longest):
        if isinstance(found, LongLine) or found.size <= longest:
            yield found
        else:
            yield from _short_lines(found, longest)


def _short_lines(data: pa.Buffer, longest: int) -> Iterator[pa.Buffer | LongLine]:
    """A block cut where it has lines that are too long."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == 10) + 1
    if not ends.size or ends[-1] < raw.size:
        ends = np.append(ends, raw.size)
    starts = np.append(0, ends[:-1])
    done = 0
    for line in np.flatnonzero(ends - starts > longest).tolist():
        start, end = int(starts[line]), int(ends[line])
        if start > done:
            yield data.slice(done, start - done)
        yield LongLine(end - start, data.slice(start, min(_HEAD, end - start)).to_pybytes())
        done = end
    if done < data.size:
        yield data.slice(done)


def _blocks(part: Range, longest: int) -> Iterator[pa.Buffer | LongLine]:
    stream = part.file.open()
    with stream:
        if part.file.compression is not None:
            yield from _stream_blocks(stream, part.file.path, longest)
            return
        position = part.start
        if position > 0:
            position = _next_line(stream, part.start - 1, part.file.size)
        while position < part.end:
            stop = min(part.end, position + BLOCK)
            stream.seek(position)
            buffer = stream.read_buffer(stop - position)
            if buffer.size == 0:
                return
            cut = _last_line_end(buffer)
            if stop < part.end and cut > 0:
                yield buffer.slice(0, cut)
                position += cut
                continue
            # The last line goes on beyond the block or the range.
            end = _next_line(stream, stop - 1, part.file.size)
            begin = position + max(cut, 0)
            if end - begin > longest:
                if cut > 0:
                    yield buffer.slice(0, cut)
                stream.seek(begin)
                yield LongLine(end - begin, stream.read(_HEAD))
            else:
                if end > stop:
                    stream.seek(position)
                    buffer = stream.read_buffer(end - position)
                yield buffer
            position = end


_HEAD = 300
"""The bytes of a line that is too long that are told of it."""


def _next_line(stream: Any, at: int, size: int) -> int:
    """Where the line after the first line end at or after ``at`` begins."""
    while at < size:
        stream.seek(at)
        data = stream.read(64 << 10)
        if not data:
            break
        found = data.find(b"\n")
        if found >= 0:
            return int(at + found + 1)
        at += len(data)
    return size


def _last_line_end(buffer: pa.Buffer) -> int:
    """The length of the buffer up to and with its last line end; -1 if it has none."""
    view = memoryview(buffer)
    step = 64 << 10
    end = len(view)
    while end > 0:
        start = max(0, end - step)
        found = bytes(view[start:end]).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return -1


def _stream_blocks(stream: Any, path: str, longest: int) -> Iterator[pa.Buffer | LongLine]:
    rest = b""
    dropped = 0  # of a line that is too long
    while True:
        try:
            data = stream.read(BLOCK)
        except OSError as error:
            raise BadRecord(f"{path} cannot be decompressed: {error}") from None
        if not data:
            break
        if dropped:
            ending = data.find(b"\n") + 1
            dropped += ending or len(data)
            if not ending:
                continue
            yield LongLine(dropped, rest)
            data, rest, dropped = data[ending:], b"", 0
        data = rest + data
        cut = data.rfind(b"\n") + 1
        if cut:
            yield pa.py_buffer(data[:cut])
        rest = data[cut:]
        if len(rest) > longest:
            rest, dropped = rest[:_HEAD], len(rest)
    if dropped:
        yield LongLine(dropped, rest)
    elif rest:
        yield pa.py_buffer(rest)


def count_lines(data: Any) -> int:
    """How many line ends a block has."""
    from headrace.kernels.native import lines

    return lines.count_lines(np.frombuffer(data, np.uint8))


def lines_before(part: Range) -> int:
    """How many lines of the file come before the range's first.

    Only asked for when a record is bad, for it reads the file up to there.
    """
    if part.start == 0:
        return 0
    lines = 0
    with part.file.open() as stream:
        left = _next_line(stream, part.start - 1, part.file.size)
        stream.seek(0)
        while left > 0:
            data = stream.read(min(BLOCK, left))
            if not data:
                break
            lines += count_lines(data)
            left -= len(data)
    return lines
