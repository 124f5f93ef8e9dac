"""Files with the state of a shard: written whole, read in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

import headrace as hr
from headrace.checkpoints.bundle_file import Key, read_bundles, read_header, write_bundles
from headrace.io.files import LOCAL

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def batch(first: int, count: int) -> pa.RecordBatch:
    rows = [{"k": f"k{i}", "v": i} for i in range(first, first + count)]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


BATCHES: dict[Key, pa.RecordBatch] = {
    (0, 1, -3, 0): batch(0, 5), (0, 1, 7, 1): batch(5, 1000), (2, 0, 7, 0): batch(0, 0),
}  # fmt: skip


def write(system: Any, path: str) -> None:
    packed = ((key, found.serialize()) for key, found in BATCHES.items())
    write_bundles(system, path, {"note": {"turn": 3, "text": "\n"}}, packed)


@pytest.mark.parametrize("system", [LOCAL, fs.SubTreeFileSystem("/", LOCAL)])
def test_a_file_has_what_was_written(tmp_path: Path, system: Any) -> None:
    """On this disk, and on a system of which nothing is known."""
    path = str(tmp_path / "state")
    write(system, path)
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    header = read_header(system, path)
    assert header["note"] == {"turn": 3, "text": "\n"}
    assert [tuple(entry[:4]) for entry in header["bundles"]] == list(BATCHES)
    found = dict(read_bundles(system, path))
    assert {k: pa.ipc.read_record_batch(d, SCHEMA) for k, d in found.items()} == BATCHES
    assert [key for key, _ in read_bundles(system, path, lambda key: key[0] == 2)] == [(2, 0, 7, 0)]


def test_mapped_bundles_are_aligned(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    write(LOCAL, path)
    assert [data.address % 8 for _, data in read_bundles(LOCAL, path)] == [0, 0, 0]


@pytest.mark.parametrize("left", [10, -10])
def test_a_file_cut_short_is_named(tmp_path: Path, left: int) -> None:
    path = tmp_path / "state"
    write(LOCAL, str(path))
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(hr.EngineError, match="state is cut short"):
        list(read_bundles(LOCAL, str(path)))
    path.unlink()
    with pytest.raises(hr.EngineError, match=r"state cannot be read.*move the state again"):
        read_header(LOCAL, str(path))
