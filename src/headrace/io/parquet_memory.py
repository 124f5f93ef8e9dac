"""How many rows of a Parquet row group to decode at a time, so that they fit into memory.

A small file can hold a lot: pages compress well, and a long text is stored once and repeated by its
code. Sizes are taken from page headers wherever it matters, because pyarrow allocates what those
say; the sizes in the footer may be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.io.parquet_footer import (
    Chunk,
    Damaged,
    read_dictionary_size,
    read_page_sizes,
)
from headrace.sizes import show_bytes

_RATIOS = {0: 1, 1: 32, 2: 1032, 5: 255, 7: 255}
"""The most that codecs can compress by: none, Snappy, gzip, LZ4. Others have no useful bound."""
_ANY_RATIO = 1 << 20
_DELTA_BYTE_ARRAY = 7
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_SHARE = 4
"""A batch takes at most memory / _SHARE, because it is copied when it is filtered or cast."""


def rows_within(
    memory: int,
    most: int,
    file: Any,
    group: int,
    group_rows: int,
    leaves: Sequence[tuple[Any, Chunk]],
) -> int:
    """Return how many rows of a row group to decode at a time.

    Args:
        memory: The most bytes to hold.
        most: The most rows to return.
        file: The file, for its page headers.
        group: The number of the row group.
        group_rows: How many rows it has.
        leaves: The stored columns that are read, and their chunks.

    Raises:
        Damaged: If the row group cannot be read within ``memory``.
    """
    total = sum(chunk.uncompressed for _, chunk in leaves)
    expanded = sum(chunk.compressed * _RATIOS.get(chunk.codec, _ANY_RATIO) for _, chunk in leaves)
    held, width = 0, 0.0
    texts: dict[str, int] = {}
    for column, chunk in leaves:
        fixed = _WIDTHS.get(column.physical_type, max(0, column.length))
        repeated = column.max_repetition_level > 0
        if expanded > memory or repeated:
            pages = read_page_sizes(file, chunk)
            held += pages.dictionary + pages.largest
            dictionary, uncompressed, longest = pages.dictionary, pages.total, pages.largest
        else:
            pages = None
            dictionary = 0 if fixed else read_dictionary_size(file, chunk)
            uncompressed = longest = chunk.uncompressed
        each = float(fixed or uncompressed / max(1, chunk.values))
        if not fixed and _DELTA_BYTE_ARRAY in chunk.encodings:
            each = longest  # every text may repeat the one before it
        if repeated and pages is not None:
            held += int(pages.most_values * each)  # a list cannot be divided
            each *= pages.values / max(1, group_rows)
        elif not fixed and dictionary * most > memory // _SHARE:
            texts[column.path] = dictionary
        width += each
    if held > memory:
        raise Damaged(
            f"row group {group} ({show_bytes(total)} uncompressed) has pages that take "
            f"{show_bytes(held)} at once, more than memory={show_bytes(memory)}; raise memory= of "
            "the engine, or write the file with smaller pages or fewer rows in a row group"
        )
    if texts:
        width += sum(_longest_texts(file, group, texts))
    return max(1, min(most, int(memory / _SHARE / max(1.0, width))))


def _longest_texts(file: Any, group: int, dictionaries: dict[str, int]) -> list[int]:
    """The bytes of the longest text in the dictionary of each column, or an upper bound.

    Args:
        file: The file.
        group: The number of the row group.
        dictionaries: The size of the dictionary page by column.
    """
    names = list(dictionaries)
    # Buffered, so that only the beginning of each column is read.
    parquet = pq.ParquetFile(file, read_dictionary=names, buffer_size=64 << 10)
    batches = parquet.iter_batches(1, row_groups=[group], columns=names, use_threads=False)
    table = pa.Table.from_batches([next(batches)])
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    longest = []
    for name, size in dictionaries.items():
        index = table.schema.get_field_index(name)
        words = None if index < 0 else table.column(index).chunk(0)
        if isinstance(words, pa.DictionaryArray) and len(words.dictionary):
            lengths = pc.binary_length(words.dictionary)
            # Otherwise the first page has no codes, and these are not the words of the dictionary.
            if pc.sum(lengths).as_py() + 4 * len(lengths) == size:
                size = pc.max(lengths).as_py()
        longest.append(size)
    return longest
