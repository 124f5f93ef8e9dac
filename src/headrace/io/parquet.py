"""Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import BadRecord, PlanError
from headrace.io.files import File, describe_files, filesystem, find_files, split_size
from headrace.io.filesink import FileSink
from headrace.io.parquet_footer import Chunk, Damaged, Footer
from headrace.io.source import Source, Split
from headrace.sizes import default_memory
from headrace.types import CODED, chosen, normal_schema, unique_names

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True)
class ParquetSource(Source):
    """Parquet files with the same columns, read row group by row group."""

    files: tuple[File, ...]
    schema: pa.Schema
    groups: tuple[tuple[int, int, int], ...]
    """Every row group: its file, its number, its bytes."""
    common: frozenset[str] = frozenset()
    """The columns that are stored in a way which every reader of Parquet takes alike."""
    coded: frozenset[str] = frozenset()
    """The text columns of few values, each of which is stored once."""
    decided: frozenset[str] = frozenset()
    """The columns whose statistics can rule out row groups, so that conditions are decided here."""
    conditions: tuple[exp.Expr, ...] = ()
    zone: str = "UTC"
    memory: int = field(default_factory=default_memory)
    """The most bytes that a split holds while it reads a row group."""

    @staticmethod
    def open(path: Any, memory: int | None = None) -> ParquetSource:
        from headrace.io.parquet_statistics import comparable_columns

        files = tuple(find_files(path, "read_parquet"))
        groups: list[tuple[int, int, int]] = []
        schema: pa.Schema | None = None
        common: frozenset[str] | None = None
        coded: frozenset[str] | None = None
        decided: frozenset[str] | None = None
        for index, file in enumerate(files):
            try:
                with _open(file) as handle:
                    parquet = _parquet(handle)
                    mine = normal_schema(parquet.schema_arrow)
                    meta = parquet.metadata
                    first = _first_group(handle)
                    same, codes = _common_columns(parquet, first), _coded_columns(parquet, first)
                    plain = frozenset(comparable_columns(parquet))
            except _UNREADABLE as error:
                raise PlanError(f"read_parquet: {file.path!r} is not Parquet: {error}") from None
            unique_names(mine.names, f"read_parquet: in {file.path!r} the column")
            if schema is None:
                schema = mine
            elif not schema.equals(mine):
                raise PlanError(
                    f"read_parquet: {file.path!r} has other columns than {files[0].path!r} "
                    f"({', '.join(mine.names)}); read them apart"
                )
            common = same if common is None else common & same
            coded = codes if coded is None else coded & codes
            decided = plain if decided is None else decided & plain
            groups.extend(
                (index, g, max(0, meta.row_group(g).total_byte_size))
                for g in range(meta.num_row_groups)
            )
        assert schema is not None
        nothing: frozenset[str] = frozenset()
        return ParquetSource(
            files, schema, tuple(groups), common or nothing, coded or nothing, decided or nothing,
            memory=memory or default_memory(),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return sum(size for _, _, size in self.groups)

    def splits(self, parallelism: int) -> list[Split]:
        """Row groups in order, put together so that each split has about as many bytes."""
        target = split_size(self.nbytes, parallelism)
        splits: list[Split] = []
        pending: list[int] = []
        size = 0
        for i, (file, group, nbytes) in enumerate(self.groups):
            pending.append(group)
            size += nbytes
            last = i + 1 == len(self.groups) or self.groups[i + 1][0] != file
            if last or size >= target:
                splits.append(
                    ParquetSplit(
                        self.files[file],
                        tuple(pending),
                        self.schema,
                        codes=self.coded,
                        conditions=self.conditions,
                        zone=self.zone,
                        memory=self.memory,
                    )
                )
                pending, size = [], 0
        return splits

    def with_memory(self, nbytes: int) -> ParquetSource:
        return replace(self, memory=nbytes)

    def filtered(self, condition: exp.Expr, zone: str) -> ParquetSource | None:
        from headrace.kernels.expressions import compile_expression
        from headrace.plan.prune import columns_of

        names = columns_of([condition])
        if not names or not names <= self.decided:
            return None
        kernel = compile_expression(condition, self.schema, zone)
        # It is decided for values that no record has, or none that earlier steps leave.
        if kernel.raises or not pa.types.is_boolean(kernel.type):
            return None
        return replace(self, conditions=(*self.conditions, condition), zone=zone)

    def __str__(self) -> str:
        return describe_files("parquet", self.files)


_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, Damaged)
"""What is raised for a file that is not Parquet, or damaged."""


def _open(file: File) -> Any:
    system, path = filesystem(file.path)
    return system.open_input_file(path)


def _parquet(file: Any, coded: Sequence[str] = ()) -> Any:
    return pq.ParquetFile(file, pre_buffer=False, read_dictionary=list(coded) or None)


def _first_group(file: Any) -> list[Chunk]:
    """The columns of the first row group, which tells how the others are stored."""
    footer = Footer(file)
    if not len(footer):
        return []
    group = footer.row_group(0)
    return [group.column(i) for i in range(len(group))]


_CODECS = {0, 1, 2, 6}
"""Uncompressed, Snappy, gzip, zstd."""
_ENCODINGS = {0, 2, 3, 4, 8}
"""Plain, run lengths, bit-packed, and both numbers for dictionaries."""


def _common_columns(parquet: Any, chunks: Sequence[Chunk]) -> frozenset[str]:
    """The columns of plain types, in the oldest encodings and with the usual codecs."""
    schema, meta = parquet.schema_arrow, parquet.metadata
    if len({name.lower() for name in schema.names}) < len(schema.names):
        return frozenset()
    notes = meta.metadata or {}
    times = b"org.apache.spark.legacyDateTime" not in notes
    times = times and not notes.get(b"org.apache.spark.version", b"9").startswith((b"1.", b"2."))
    common = {f.name for f in schema if _is_common(f.type, times)}
    usual = {
        c.path for c in chunks if c.codec in _CODECS and c.encodings <= _ENCODINGS
    }  # fmt: skip
    return frozenset(n for n in common if not chunks or (n.encode(),) in usual)


def _coded_columns(parquet: Any, chunks: Sequence[Chunk]) -> frozenset[str]:
    """The text columns whose codes take two bytes a record at most."""
    few = {
        c.path for c in chunks if c.has_dictionary and c.uncompressed <= 2 * c.values
    }  # fmt: skip
    return frozenset(
        field.name
        for field in parquet.schema_arrow
        if _is_text(field.type) and (field.name.encode(),) in few
    )


def _is_text(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def _is_common(kind: pa.DataType, times: bool) -> bool:
    t = pa.types
    if t.is_dictionary(kind):
        kind = kind.value_type
    if t.is_date32(kind) or (t.is_timestamp(kind) and kind.unit == "us"):
        return times
    return bool(
        t.is_boolean(kind) or t.is_signed_integer(kind) or t.is_float32(kind) or t.is_float64(kind)
        or t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind)
        or t.is_large_binary(kind) or t.is_decimal128(kind)
    )  # fmt: skip


@dataclass(frozen=True)
class ParquetSplit(Split):
    """Some row groups of one file."""

    file: File
    groups: tuple[int, ...]
    schema: pa.Schema
    coded: tuple[str, ...] = ()
    """The text columns that are given coded."""
    codes: frozenset[str] = frozenset()
    """The text columns that are stored by codes, of which conditions are decided by value."""
    conditions: tuple[exp.Expr, ...] = ()
    """What records must meet to be given."""
    zone: str = "UTC"
    memory: int = field(default_factory=default_memory)

    @property
    def sequence(self) -> str:
        return self.file.path

    def with_codes(self, names: Collection[str]) -> ParquetSplit:
        return replace(self, coded=tuple(sorted(names)))

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        from headrace.io.parquet_scan import Condition, Scan
        from headrace.plan.prune import columns_of

        fields = chosen(self.schema, columns)
        coded = [name for name in self.coded if name in fields.names]
        wanted = pa.schema([pa.field(f.name, CODED) if f.name in coded else f for f in fields])
        tested = columns_of(self.conditions) & self.codes
        conditions = [
            Condition(tree, self.schema, self.zone, {*coded, *tested}) for tree in self.conditions
        ]
        try:
            with _open(self.file) as file:
                parquet = _parquet(file, sorted({*coded, *tested}))
                scan = Scan(parquet, file, wanted, conditions, self.memory)
                yield from scan.read(self.groups)
        except _UNREADABLE as error:
            raise BadRecord(f"{self.file.path} cannot be read: {error}") from None


class ParquetSink(FileSink):
    """Parquet files, compressed with zstd unless ``compression`` says otherwise."""

    suffix = ".parquet"
    known = ("compression", "compression_level", "row_group_size", "use_dictionary")

    def check(self, schema: pa.Schema) -> None:
        codec = self.options.get("compression", "zstd")
        if codec not in ("none", "snappy", "gzip", "brotli", "lz4", "zstd", None):
            raise PlanError(f"write_parquet: compression={codec!r} is not a codec; use 'zstd'")

    def encoder(self, file: Any, schema: pa.Schema) -> Any:
        options = {"compression": "zstd", **self.options}
        rows = options.pop("row_group_size", None)
        return _ParquetEncoder(pq.ParquetWriter(file, schema, **options), rows)


class _ParquetEncoder:
    """Puts bundles together into row groups of a size that reads well."""

    def __init__(self, writer: Any, rows: int | None) -> None:
        self.writer, self.rows = writer, rows or 1 << 20
        self.pending: list[pa.RecordBatch] = []
        self.held = 0

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self.pending.append(batch)
        self.held += batch.num_rows
        if self.held >= self.rows or sum(b.nbytes for b in self.pending) > 64 << 20:
            self._flush()

    def _flush(self) -> None:
        if self.pending:
            self.writer.write_table(pa.Table.from_batches(self.pending), row_group_size=self.rows)
        self.pending, self.held = [], 0

    def close(self) -> None:
        self._flush()
        self.writer.close()
