"""Graphs for the iterative workloads: edges as Parquet, seeded, of any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PER_VERTEX = 10


def web(records: int, seed: int) -> tuple[Any, Any]:
    """Links between pages, ten for each; few pages get most of them."""
    rng = np.random.default_rng([seed, 21])
    pages = max(2, records // PER_VERTEX)
    source = rng.integers(0, pages, records)
    target = (pages * rng.random(records) ** 3).astype(np.int64)
    return source, np.where(target == source, (target + 1) % pages, target)


def clusters(records: int, seed: int, size: int = 40) -> tuple[Any, Any]:
    """Vertices in clusters of some size, with an edge for each and none between clusters."""
    rng = np.random.default_rng([seed, 22])
    first = np.arange(records) // size * size
    source = first + rng.integers(0, size, records)
    target = first + rng.integers(0, size, records)
    return source, np.where(target == source, first + (target - first + 1) % size, target)


def write_edges(folder: Path, name: str, edges: tuple[Any, Any]) -> Path:
    """Edges as a Parquet file with the columns ``src`` and ``dst``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.exists():
        draft = path.with_name(f".{path.name}")
        table = pa.table({"src": edges[0], "dst": edges[1]})
        pq.write_table(table, draft, row_group_size=1 << 20)
        draft.rename(path)
    return path


def read_edges(path: str) -> list[tuple[int, int]]:
    """The edges as pairs."""
    table = pq.read_table(path)
    return list(zip(table["src"].to_pylist(), table["dst"].to_pylist(), strict=True))
