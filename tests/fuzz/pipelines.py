"""Random pipelines, each built twice: as a stream, and as SQL for DuckDB."""

from __future__ import annotations

import datetime
import math
import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

import headrace as hr

START = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("k", pa.int64()), ("s", pa.string()), ("n", pa.int64()),
        ("x", pa.float64()), ("y", pa.float64()), ("b", pa.bool_()), ("big", pa.int64()),
        ("d", pa.date32()), ("ts", pa.timestamp("us", tz="UTC")),
    ]
)  # fmt: skip
KINDS = {
    "id": "int", "k": "int", "s": "text", "n": "int", "x": "real", "y": "float", "b": "bool",
    "big": "big", "d": "date", "ts": "time",
}  # fmt: skip
"""What may be done with a column: ``real`` may be summed, ``float`` and ``big`` only compared."""


@dataclass(frozen=True)
class Pipeline:
    """A stream, and the query that must give the same records."""

    stream: hr.Stream
    sql: str
    kinds: dict[str, str]
    ordered: bool = True
    """Whether the records still come in the order of ``id``."""
    steps: tuple[str, ...] = field(default=())

    def then(self, what: str, stream: hr.Stream, sql: str, **changes: Any) -> Pipeline:
        return replace(self, stream=stream, sql=sql, steps=(*self.steps, what), **changes)

    def of(self, *kinds: str) -> list[str]:
        return [n for n, k in self.kinds.items() if k in kinds]


def random_table(rng: random.Random) -> pa.Table:
    rows = rng.choice([0, 1, 5, 30, 200])
    spread = rng.choice([2, 10, 1000])

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    records = [
        {
            "id": i,
            "k": maybe(rng.randrange(spread)),
            "s": maybe(rng.choice(["", "a", "b", "ab", "é😀", "a" * 20, "A", " a", "%"])),
            "n": maybe(rng.randint(-50, 50)),
            "x": maybe(rng.randint(-80, 80) / 8),
            "y": maybe(rng.choice([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, -2.0])),
            "b": maybe(rng.random() < 0.5),
            "big": maybe(rng.choice([2**63 - 1, -(2**63), 0, rng.getrandbits(62)])),
            "d": maybe((START + datetime.timedelta(days=rng.randint(-400, 400))).date()),
            "ts": START + datetime.timedelta(microseconds=rng.randrange(60_000_000)),
        }
        for i in range(rows)
    ]
    table = pa.Table.from_pylist(records, schema=SCHEMA)
    at = rng.randint(0, rows)
    return pa.concat_tables([table.slice(0, at), table.slice(at)]) if rng.random() < 0.5 else table


def source(table: pa.Table, name: str) -> Pipeline:
    return Pipeline(hr.from_arrow(table), f"select * from {name}", dict(KINDS), True, (name,))


def quoted(names: Any) -> str:
    return ", ".join(f'"{n}"' for n in names)


# Expressions that mean the same in both


def condition(rng: random.Random, p: Pipeline) -> str:
    options = []
    for n in p.of("int"):
        options += [f"{n} > {rng.randint(-20, 60)}", f"{n} % 3 = 1", f"{n} in (1, 2, 5, null)"]
    for n in p.of("real", "float"):
        options += [f"{n} <= {rng.randint(-5, 5)}.5", f"{n} <> 1.5"]
    for n in p.of("text"):
        options += [f"{n} like 'a%'", f"length({n}) > 1", f"{n} < 'ab'", f"{n} in ('a', '')"]
    for n in p.of("bool"):
        options += [n, f"not {n}"]
    for n in p.of("date"):
        options += [f"{n} >= date '2024-02-29'", f"year({n}) = 2024"]
    for n in p.of("big"):
        options += [f"{n} < 0"]
    for n in p.kinds:
        options += [f"{n} is null", f"{n} is not null"]
    one, other = rng.choice(options), rng.choice(options)
    return rng.choice([one, f"({one}) and ({other})", f"({one}) or ({other})", f"not ({one})"])


def computed(rng: random.Random, p: Pipeline) -> tuple[str, str]:
    """An expression, and what kind of column it gives."""
    options = [("1", "int"), ("'w'", "text")]
    for n in p.of("int"):
        options += [
            (f"{n} % 7", "int"), (f"abs({n} % 100) + 3", "int"), (f"coalesce({n}, -1)", "int"),
            (f"case when {n} > 10 then {n} else 0 end", "int"), (f"{n} / 4", "real"),
            (f"nullif({n}, 1)", "int"), (f"cast({n} as string)", "text"),
        ]  # fmt: skip
    for n in p.of("real"):
        options += [(f"{n} * 2", "real"), (f"coalesce({n}, 0.5)", "real"), (f"-{n}", "real")]
    for n in p.of("text"):
        options += [
            (f"upper({n})", "text"), (f"{n} || 'x'", "text"), (f"length({n})", "int"),
            (f"substring({n}, 1, 2)", "text"), (f"trim({n})", "text"), (f"{n} = 'a'", "bool"),
        ]  # fmt: skip
    for n in p.of("date"):
        options += [(f"month({n})", "int"), (f"date_add({n}, 3)", "date")]
    return rng.choice(options)


def in_duckdb(text: str) -> str:
    """The same expression in DuckDB's words: its dates add integers and its strings are varchar."""
    text = re.sub(r"date_add\((\w+), (\d+)\)", r"(\1 + \2)", text)
    return text.replace(" as string)", " as varchar)")


def typed(text: str, kind: str) -> str:
    """DuckDB's types are wider or narrower in places; ours are Spark's."""
    sql = {"int": "bigint", "real": "double"}.get(kind)
    return f"cast({in_duckdb(text)} as {sql})" if sql else in_duckdb(text)


# Steps


def filtered(rng: random.Random, p: Pipeline) -> Pipeline:
    text = condition(rng, p)
    sql = f"select * from ({p.sql}) where {in_duckdb(text)}"
    return p.then(f"filter({text})", p.stream.filter(text), sql)


def with_columns(rng: random.Random, p: Pipeline) -> Pipeline:
    text, kind = computed(rng, p)
    name = rng.choice(["c", "e", *[n for n in p.kinds if n not in ("id", "ts")]])
    ours = f"cast({text} as bigint)" if kind == "int" else text
    stream = p.stream.with_columns(**{name: ours})
    kinds = {**p.kinds, name: kind}
    columns = [f'{typed(text, kind)} as "{n}"' if n == name else f'"{n}"' for n in kinds]
    sql = f"select {', '.join(columns)} from ({p.sql})"
    return p.then(f"with_columns({name}={ours})", stream, sql, kinds=kinds)


def selected(rng: random.Random, p: Pipeline) -> Pipeline:
    names = rng.sample(list(p.kinds), rng.randint(1, len(p.kinds)))
    kinds = {n: p.kinds[n] for n in names}
    sql = f"select {quoted(names)} from ({p.sql})"
    ordered = p.ordered and "id" in kinds
    return p.then(f"select({names})", p.stream.select(*names), sql, kinds=kinds, ordered=ordered)


def aggregates(rng: random.Random, p: Pipeline, last: bool) -> list[tuple[str, Any, str, str]]:
    """Aggregates: a name, ours, DuckDB's, and the kind of column."""
    options = [("a0", hr.count(), "count(*)", "int")]
    for n in p.kinds:
        options += [(f"a1{n}", hr.count(n), f'count("{n}")', "int")]
        options += [(f"a2{n}", hr.count_distinct(n), f'count(distinct "{n}")', "int")]
        if p.kinds[n] != "bool":
            options += [
                (f"a3{n}", hr.min(n), f'min("{n}")', p.kinds[n]),
                (f"a4{n}", hr.max(n), f'max("{n}")', p.kinds[n]),
            ]
    for n in p.of("int", "real"):
        kind = p.kinds[n]
        sql = "bigint" if kind == "int" else "double"
        options += [(f"a5{n}", hr.sum(n), f'cast(sum("{n}") as {sql})', kind)]
        if last:  # their last digits differ, so nothing may be decided by them
            options += [
                (f"a6{n}", hr.mean(n), f'avg("{n}")', "rough"),
                (f"a7{n}", hr.var(n), f'var_samp("{n}")', "rough"),
                (f"a8{n}", hr.std(n), f'stddev_samp("{n}")', "rough"),
            ]
    options = [option for option in options if option[0] not in p.kinds]  # a key may have its name
    return rng.sample(options, min(len(options), rng.randint(1, 5)))


def grouped(rng: random.Random, p: Pipeline, last: bool = False) -> Pipeline:
    keys = rng.sample(list(p.kinds), rng.randint(0, min(2, len(p.kinds))))
    chosen = aggregates(rng, p, last)
    ours = {name: mine for name, mine, _, _ in chosen}
    stream = p.stream.group_by(*keys).agg(**ours) if keys else p.stream.agg(**ours)
    kinds = {**{k: p.kinds[k] for k in keys}, **{name: kind for name, _, _, kind in chosen}}
    columns = [f'"{k}"' for k in keys] + [f'{sql} as "{n}"' for n, _, sql, _ in chosen]
    by = f" group by {quoted(keys)}" if keys else ""
    sql = f"select {', '.join(columns)} from ({p.sql}){by}"
    what = f"group_by({keys}).agg({ours})"
    return p.then(what, stream, sql, kinds=kinds, ordered=False)


def distinct(rng: random.Random, p: Pipeline) -> Pipeline:
    names = rng.sample(list(p.kinds), rng.randint(1, len(p.kinds)))
    sql = f"select distinct {quoted(names)} from ({p.sql})"
    kinds = {n: p.kinds[n] for n in names}
    return p.then(f"distinct({names})", p.stream.distinct(*names), sql, kinds=kinds, ordered=False)


def sorted_and_cut(rng: random.Random, p: Pipeline) -> Pipeline:
    names = rng.sample(list(p.kinds), len(p.kinds))  # all of them, so that there are no ties
    down = [rng.random() < 0.5 for _ in names]
    count = rng.choice([0, 1, 5, 50])
    order = ", ".join(
        f'"{n}" desc nulls last' if d else f'"{n}" asc nulls first'
        for n, d in zip(names, down, strict=True)
    )
    stream = p.stream.sort(*names, descending=down).limit(count)
    sql = f"select * from ({p.sql}) order by {order} limit {count}"
    return p.then(f"sort({names}, {down}).limit({count})", stream, sql, ordered=False)


def first_records(rng: random.Random, p: Pipeline) -> Pipeline:
    if not p.ordered:
        return p
    count = rng.choice([0, 1, 10, 100])
    sql = f"select * from ({p.sql}) order by id limit {count}"
    return p.then(f"limit({count})", p.stream.limit(count), sql)


def top(rng: random.Random, p: Pipeline) -> Pipeline:
    by, count = rng.choice(list(p.kinds)), rng.choice([1, 3, 20])
    ties = "".join(f', "{n}" asc nulls first' for n in p.kinds if n != by)
    sql = f'select * from ({p.sql}) order by "{by}" desc nulls last{ties} limit {count}'
    return p.then(f"top_k({count}, {by})", p.stream.top_k(count, by=by), sql, ordered=False)


def joined(rng: random.Random, p: Pipeline, other: Pipeline) -> Pipeline:
    """A join on a column that both have, of any kind of join."""
    shared = [n for n in p.kinds if other.kinds.get(n) == p.kinds[n] and n != "x"]
    if not shared:
        return p
    how = rng.choice(["inner", "left", "right", "outer", "semi", "anti"])
    keys = rng.sample(shared, rng.randint(1, min(2, len(shared))))
    suffix = f"_{len(p.steps)}"
    stream = p.stream.join(other.stream, on=keys, how=how, suffix=suffix)
    on = " and ".join(f'l."{k}" = r."{k}"' for k in keys)
    what = f"join({how}, {keys}, [{' '.join(other.steps)}])"
    if how in ("semi", "anti"):
        sql = f"select l.* from ({p.sql}) l {how} join ({other.sql}) r on {on}"
        return p.then(what, stream, sql, ordered=False)
    kinds = dict(p.kinds)
    columns = []
    for n in p.kinds:
        side = {"right": f'r."{n}"', "outer": f'coalesce(l."{n}", r."{n}")'}.get(how, f'l."{n}"')
        columns.append(f'{side if n in keys else f"""l."{n}" """} as "{n}"')
    for n, kind in other.kinds.items():
        if n not in keys:
            name = n + (suffix if n in p.kinds else "")
            kinds[name] = kind
            columns.append(f'r."{n}" as "{name}"')
    word = {"outer": "full"}.get(how, how)
    sql = f"select {', '.join(columns)} from ({p.sql}) l {word} join ({other.sql}) r on {on}"
    return p.then(what, stream, sql, kinds=kinds, ordered=False)


def united(p: Pipeline, other: Pipeline) -> Pipeline:
    if list(p.kinds.items()) != list(other.kinds.items()) or not p.stream.schema.equals(
        other.stream.schema
    ):
        return p
    sql = f"select * from ({p.sql}) union all select * from ({other.sql})"
    what = f"union([{' '.join(other.steps)}])"
    return p.then(what, p.stream.union(other.stream), sql, ordered=False)


def windowed(rng: random.Random, p: Pipeline) -> Pipeline:
    """Tumbling or sliding windows, with no record late."""
    if p.kinds.get("ts") != "time" or not p.ordered:
        return p
    every = rng.randint(1, 20)
    size = every if rng.random() < 0.5 else every + rng.randint(0, 30)
    offset = rng.choice([0, 0, 3])
    window = hr.sliding(f"{size}s", every=f"{every}s", offset=f"{offset}s")
    keys = rng.sample([n for n in p.kinds if n != "ts"], rng.randint(0, min(2, len(p.kinds) - 1)))
    chosen = aggregates(rng, p, False)
    timed = p.stream.event_time("ts", delay="1h")
    gathered = timed.key_by(*keys).window(window) if keys else timed.window(window)
    stream = gathered.agg(**{name: mine for name, mine, _, _ in chosen})
    us, step, span, shift = "epoch_us(ts)", every * 10**6, size * 10**6, offset % every * 10**6
    newest = f"({us} - {shift} - (({us} - {shift}) % {step} + {step}) % {step} + {shift})"
    starts = f"range({newest}, {us} - {span}, -{step})"
    inner = f"select *, unnest({starts}) as ws from ({p.sql})"
    columns = [f'"{k}"' for k in keys]
    columns += [
        "make_timestamptz(ws) as window_start",
        f"make_timestamptz(ws + {span}) as window_end",
    ]
    columns += [f'{sql} as "{n}"' for n, _, sql, _ in chosen]
    by = ", ".join([*(f'"{k}"' for k in keys), "ws"])
    sql = f"select {', '.join(columns)} from ({inner}) group by {by}"
    kinds = {**{k: p.kinds[k] for k in keys}, "window_start": "time", "window_end": "time"}
    kinds |= {name: kind for name, _, _, kind in chosen}
    what = f"window({window}, {keys}).agg({[n for n, *_ in chosen]})"
    return p.then(what, stream, sql, kinds=kinds, ordered=False)


_NARROW = [filtered, filtered, with_columns, with_columns, selected]
_ANY = [*_NARROW, distinct, sorted_and_cut, top, grouped]


def random_pipeline(rng: random.Random, tables: dict[str, pa.Table], steps: int = 5) -> Pipeline:
    p = source(tables["t"], "t")
    for _ in range(rng.randint(0, 2)):
        p = rng.choice(_NARROW)(rng, p)
    if rng.random() < 0.3:
        p = windowed(rng, p)
    elif rng.random() < 0.2:
        p = first_records(rng, p)
    for _ in range(rng.randint(0, steps)):
        choice = rng.random()
        if choice < 0.15:
            side = source(tables["u"], "u")
            for _ in range(rng.randint(0, 2)):
                side = rng.choice([*_NARROW, distinct])(rng, side)
            p = joined(rng, p, side)
        elif choice < 0.25:
            p = united(p, filtered(rng, p))
        else:
            p = rng.choice(_ANY)(rng, p)
    return grouped(rng, p, last=True) if rng.random() < 0.3 else p
