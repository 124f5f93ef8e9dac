"""Lines of text for the word-counting workloads: Zipf words, seeded, of any number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

WORDS, PER_LINE, CHUNK = 50_000, 16, 100_000


def vocabulary(seed: int) -> pa.Array:
    """Words of 2 to 10 letters, all different."""
    rng = np.random.default_rng(seed)
    words: dict[str, None] = {}
    while len(words) < WORDS:
        letters = rng.integers(97, 123, size=(WORDS, 10), dtype=np.uint8)
        sizes = rng.integers(2, 11, size=WORDS)
        for row, size in zip(letters, sizes, strict=True):
            words.setdefault(row[:size].tobytes().decode())
    return pa.array(list(words)[:WORDS])


def lines(records: int, seed: int) -> Iterator[pa.Array]:
    """Lines of 16 words, about 112 bytes, the words by Zipf's law."""
    words = vocabulary(seed)
    weights = np.cumsum(1 / np.arange(1, WORDS + 1))
    weights /= weights[-1]
    for start in range(0, records, CHUNK):
        count = min(CHUNK, records - start)
        rng = np.random.default_rng([seed, start])
        picks = np.searchsorted(weights, rng.random(count * PER_LINE))
        offsets = pa.array(np.arange(0, count * PER_LINE + 1, PER_LINE, dtype=np.int32))
        yield pc.binary_join(pa.ListArray.from_arrays(offsets, words.take(pa.array(picks))), " ")


def write_lines(folder: Path, records: int, seed: int, form: str) -> Path:
    """The lines as one text file, or as one Parquet file with the column ``line``."""
    folder.mkdir(parents=True, exist_ok=True)
    suffix = {"text": "txt", "parquet": "parquet"}[form]
    path = folder / f"lines-{records}-{seed}.{suffix}"
    if path.exists():
        return path
    draft = path.with_name(f".{path.name}")
    schema = pa.schema([pa.field("line", pa.string())])
    if form == "parquet":
        with pq.ParquetWriter(draft, schema, use_dictionary=False) as writer:
            for part in lines(records, seed):
                writer.write_batch(pa.RecordBatch.from_arrays([part], schema=schema))
    else:
        with draft.open("wb") as file:
            for part in lines(records, seed):
                file.write("\n".join(part.to_pylist()).encode() + b"\n")
    return draft.rename(path)
