"""A Postgres table that takes a stream's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import PlanError, nearest
from headrace.io.gathering import GatheringSink
from headrace.secrets import Secret
from headrace.types import type_name

EPOCHS = "headrace_epochs"
_TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def client() -> Any:
    """The Postgres client library."""
    try:
        import psycopg
    except ImportError:
        raise PlanError("Postgres needs its client: pip install 'headrace[postgres]'") from None
    return psycopg


class PostgresSink(GatheringSink):
    """Rows of a table, appended, or put in place of those with the same key.

    The table is made if it is not there. The rows of an epoch, and the note in the table
    ``headrace_epochs`` that it counts, are one transaction: an epoch that comes twice is written
    once.
    """

    guarantee = "exactly once"

    def __init__(self, table: str, url: str | Secret, key: Sequence[str]) -> None:
        self.table, self.url, self.key = table, Secret.of(url), tuple(key)
        self.secrets = (self.url,)

    def __str__(self) -> str:
        return f"Postgres table {self.table}"

    def check(self, schema: pa.Schema) -> None:
        client()
        for each in schema:
            _type(each)
        for name in self.key:
            if name not in schema.names:
                raise PlanError(f"there is no column '{name}'{nearest(name, schema.names)}")

    def store(self, table: pa.Table, job: str, epoch: int) -> None:
        psycopg = client()
        from psycopg import sql

        target = sql.Identifier(*self.table.split("."))
        names = sql.SQL(", ").join(map(sql.Identifier, table.schema.names))
        with psycopg.connect(self.url.reveal()) as link, link.cursor() as cursor:
            # Two that make a table at once fail, even if each makes it only where it is missing.
            cursor.execute("SELECT pg_advisory_xact_lock(7305804385369126)")
            if epoch >= 0 and not self._claims(cursor, job, epoch):
                return
            self._make(cursor, target, table.schema)
            place = target
            if self.key:
                place = sql.Identifier("headrace_rows")
                cursor.execute(
                    sql.SQL("CREATE TEMP TABLE {} (LIKE {}, _row bigserial) ON COMMIT DROP").format(
                        place, target
                    )
                )
            with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(place, names)) as copy:
                for batch in table.to_batches():
                    for row in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                        copy.write_row(row)
            if self.key:
                self._upsert(cursor, target, place, table.schema)

    def _claims(self, cursor: Any, job: str, epoch: int) -> bool:
        """Whether an epoch is new; it is noted, and counts if the transaction does."""
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {EPOCHS} "
            "(job text, sink text, epoch bigint NOT NULL, PRIMARY KEY (job, sink))"
        )
        cursor.execute(
            f"INSERT INTO {EPOCHS} AS e VALUES (%s, %s, %s) ON CONFLICT (job, sink) "
            "DO UPDATE SET epoch = EXCLUDED.epoch WHERE e.epoch < EXCLUDED.epoch",
            (job, self.table, epoch),
        )
        return bool(cursor.rowcount)

    def _make(self, cursor: Any, target: Any, schema: pa.Schema) -> None:
        from psycopg import sql

        columns = [
            sql.SQL("{} {}").format(sql.Identifier(f.name), sql.SQL(_type(f))) for f in schema
        ]
        if self.key:
            keys = sql.SQL(", ").join(map(sql.Identifier, self.key))
            columns.append(sql.SQL("PRIMARY KEY ({})").format(keys))
        cursor.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
                target, sql.SQL(", ").join(columns)
            )
        )

    def _upsert(self, cursor: Any, target: Any, place: Any, schema: pa.Schema) -> None:
        from psycopg import sql

        names = sql.SQL(", ").join(map(sql.Identifier, schema.names))
        keys = sql.SQL(", ").join(map(sql.Identifier, self.key))
        rest = [n for n in schema.names if n not in self.key]
        changes = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(n)) for n in rest]
        action = (
            sql.SQL("DO UPDATE SET {}").format(sql.SQL(", ").join(changes))
            if changes
            else sql.SQL("DO NOTHING")
        )
        # Of several rows with one key, the last that came.
        cursor.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM (SELECT DISTINCT ON ({}) * FROM {} "
                "ORDER BY {}, _row DESC) AS newest ON CONFLICT ({}) {}"
            ).format(target, names, names, keys, place, keys, keys, action)
        )


def _type(field: pa.Field) -> str:
    kind = type_name(field.type)
    if pa.types.is_decimal(field.type):
        return f"numeric({field.type.precision}, {field.type.scale})"
    if pa.types.is_list(field.type):
        return f"{_type(field.type.value_field)}[]"
    if kind not in _TYPES:
        raise PlanError(
            f"write_postgres: '{field.name}' is {kind}, which a table has no type for; cast it"
        )
    return _TYPES[kind]
