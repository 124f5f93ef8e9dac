"""Random expressions in which every function of ours has a place."""

from __future__ import annotations

import random
import re

import pyarrow as pa

from tests.expressions.test_against_spark import SCHEMA as COLUMNS
from tests.expressions.test_against_spark import quote
from tests.fuzz.values import text

SCHEMA = pa.schema(
    [
        *COLUMNS,
        ("v", pa.binary()),
        ("g", pa.list_(pa.float64())),
        ("o", pa.list_(pa.list_(pa.int64()))),
    ]
)
_WORDS = {
    "smooth": "sqrt exp expm1 sin cos tan asin acos atan sinh cosh tanh ln log log10 log2 log1p "
    "sign signum",
    "date_part": "year quarter month day dayofmonth dayofweek weekday dayofyear weekofyear",
    "time_part": "hour minute second year month day",
    "trim": "trim btrim ltrim rtrim lower lcase upper ucase reverse",
    "length": "length len char_length character_length octet_length",
    "holds": "contains startswith starts_with endswith ends_with",
    "matches": "rlike regexp regexp_like",
    "digest": "md5 sha sha1",
    "truncate": "'hour' 'day' 'week' 'month' 'year' 'minute' 'quarter' 'second' 'millisecond'",
    "coarse": "'year' 'month' 'week' 'quarter'",
    "compare": "= <> < <= > >= <=>",
    "sum": "+ - *",
}
PATTERNS = [
    "a", "ab", "[a-c]+", "^a", "x$", "\\\\d+", "(a)(b)?", "a|b", ".", "\\\\s", "[^a-z]", "é+",
    "\\\\W+", "(?i)x", "(?i)é", "\\\\bé", "\\\\b", "b*", "a{2,3}", ",", "a.*b", "[, ]", "(?s)a.b",
    "(?m)^a$", "\\\\w+", "\\\\p{L}+", "日", "(?<=a)b", "ab|ba", "\\\\.",
]  # fmt: skip
SMALL = [*range(-3, 13), 100, -2147483648, 2147483647]

TEMPLATES: dict[str, list[str]] = {
    "int": [
        "i", "j", "y", "h", "0", "1", "7", "-3", "size(a)", "r.k", "a[{index}]",
        "({int} {sum} {int})", "({int} % {int})", "mod({int}, {int})", "(-i)", "abs({int})",
        "{length}({string})", "length({binary})", "cardinality({list})", "array_size({texts})",
        "coalesce({int}, {int})", "nvl({int}, {int})", "ifnull({int}, {int})",
        "if({bool}, {int}, {int})", "greatest({int}, {int}, {int})", "least({int}, {int})",
        "nullif({int}, {int})", "{date_part}({date})", "{date_part}({time})", "{time_part}({time})",
        "{time_part}({ntz})", "datediff({date}, {date})", "date_diff({time}, {date})",
        "hash({any}, {any})", "get({list}, {small})", "get({list}, {int})",
        "element_at({list}, {index})", "element_at({list}, -1)", "try_cast({string} as int)",
        "cast({long} as int)", "try_cast({double} as smallint)", "cast({bool} as int)",
        "try_cast({decimal} as int)", "case when {bool} then {int} else {int} end",
        "case {int} when {int} then {int} end", "instr({string}, {word})",
        "locate({word}, {string})", "round({int}, {small})", "try_cast({int} as tinyint)",
        "named_struct('p', {int}, 'q', {string}).p",
    ],
    "long": [
        "l", "m", "3000000000", "cast(5 as bigint)", "({long} {sum} {int})", "({long} % {long})",
        "({long} div {int})", "ceil({double})", "ceiling({double})", "floor({double})",
        "unix_micros({time})", "unix_millis({time})", "unix_seconds({time})",
        "xxhash64({any}, {any})", "crc32({string})", "crc32({binary})", "cast({double} as bigint)",
        "cast({time} as bigint)", "try_cast({string} as bigint)", "bround({long}, -1)",
        "get(get(o, {index}), 0)", "abs({long})",
    ],
    "double": [
        "x", "z", "f", "0.5", "-2.0", "1e3", "-0.0", "({int} / {int})", "({double} / {double})",
        "({double} {sum} {double})", "({double} {sum} {long})", "({double} % {double})",
        "abs({double})", "{smooth}({double})", "{smooth}({int})", "log({double}, {double})",
        "round({double}, {small})", "bround({double}, {small})", "nanvl({double}, {double})",
        "greatest({double}, {double})", "least({double}, {double})",
        "coalesce({double}, {double})", "cast({long} as double)", "cast({int} as float)",
        "try_cast({string} as double)", "cast({decimal} as double)", "cast({time} as double)",
        "pow({double}, {double})", "power({double}, {int})", "atan2({double}, {double})", "pi()",
        "element_at({doubles}, {index})", "nullif({double}, {double})", "cast({bool} as double)",
    ],
    "string": [
        "s", "u", "r.v", "{word}", "{trim}({string})", "concat({string}, {string})",
        "concat({int}, {string})", "({string} || {string})",
        "concat_ws({word}, {string}, {string})",
        "substring({string}, {small}, {small})", "substr({string}, {small})",
        "mid({string}, {small}, {small})", "replace({string}, {word}, {word})",
        "replace({string}, {word})", "repeat({string}, {index})", "lpad({string}, {pad}, {word})",
        "rpad({string}, {pad}, {word})", "lpad({string}, {pad})", "left({string}, {small})",
        "right({string}, {small})", "regexp_extract({string}, {pattern}, 0)",
        "regexp_replace({string}, {pattern}, '-')", "regexp_replace({string}, {pattern}, '$0$0')",
        "coalesce({string}, {string})", "{digest}({string})", "sha2({string}, 256)",
        "md5({binary})",
        "cast({int} as string)", "cast({long} as string)", "cast({bool} as string)",
        "cast({date} as string)", "cast({time} as string)", "cast({ntz} as string)",
        "cast({double} as string)", "cast({decimal} as string)", "cast({binary} as string)",
        "date_format({time}, 'yyyy-MM-dd HH:mm:ss')", "get({texts}, {index})",
        "case when {bool} then {string} else {string} end", "nullif({string}, {string})",
        "greatest({string}, {string})",
    ],
    "bool": [
        "b", "c", "true", "false", "null", "({int} {compare} {int})", "({int} {compare} {double})",
        "({string} {compare} {string})", "({double} {compare} {double})",
        "({date} {compare} {date})", "({time} {compare} {time})", "({bool} {compare} {bool})",
        "({decimal} {compare} {decimal})", "({date} {compare} '2024-02-29')",
        "({bool} and {bool})", "({bool} or {bool})", "(not {bool})", "({any} is null)",
        "({any} is not null)", "isnull({any})", "isnotnull({any})", "({bool} is true)",
        "({bool} is false)", "({int} between {int} and {double})", "({int} in (1, {int}, null))",
        "({string} in ('a', {word}))", "({double} in (0.0, {double}))",
        "{matches}({string}, {pattern})", "({string} rlike {pattern})",
        "({string} like {like})", "({string} not like {like})", "({string} ilike {like})",
        "{holds}({string}, {word})", "isnan({double})", "array_contains({list}, {int})",
        "array_contains({texts}, {string})", "array_contains({doubles}, {double})",
        "try_cast({string} as boolean)", "cast({int} as boolean)",
    ],
    "date": [
        "d", "e", "date '2020-02-29'", "date_add({date}, {small})", "date_sub({date}, {pad})",
        "dateadd({date}, {int})", "add_months({date}, {pad})", "last_day({date})",
        "trunc({date}, {coarse})", "cast({time} as date)", "cast({ntz} as date)",
        "({date} + interval '3' day)", "coalesce({date}, {date})", "try_cast({string} as date)",
        "to_date(cast({date} as string), 'yyyy-MM-dd')",
    ],
    "time": [
        "t", "timestamp '2020-02-29 23:59:59.5'", "date_trunc({truncate}, {time})",
        "({time} + interval '{index}' second)", "({time} - interval '90' minute)",
        "cast({date} as timestamp)", "greatest({time}, {time})", "cast({ntz} as timestamp)",
        "timestamp_seconds({int})", "timestamp_seconds({double})", "timestamp_millis({int})",
        "timestamp_micros({long})", "try_cast({string} as timestamp)",
        "to_timestamp(cast({date} as string), 'yyyy-MM-dd')",
        "to_timestamp(date_format({time}, 'yyyy/MM/dd HH'), 'yyyy/MM/dd HH')",
    ],
    "ntz": ["n", "date_trunc({truncate}, {ntz})", "cast({time} as timestamp_ntz)"],
    "list": [
        "a", "array({int}, {int})", "array(1, 2, null)", "array_distinct({list})",
        "coalesce({list}, {list})", "if({bool}, {list}, {list})",
    ],
    "texts": [
        "w", "split({string}, {pattern})", "split({string}, '')", "array_distinct({texts})",
        "regexp_extract_all({string}, {pattern}, 0)", "array({string}, {string})",
        "array_distinct(split({string}, '[ ,]'))", "cast({list} as array<string>)",
    ],
    "doubles": ["g", "array({double}, {double})", "array_distinct({doubles})",
                "cast({list} as array<double>)"],
    "decimal": [
        "p", "q", "({decimal} {sum} {decimal})", "({decimal} {sum} {int})", "(-p)",
        "cast({int} as decimal(12, 1))", "try_cast({string} as decimal(10, 2))",
        "coalesce({decimal}, {decimal})", "try_cast({double} as decimal(9, 3))",
        "try_cast({decimal} as decimal(6, 1))", "abs(q)",
    ],
    "binary": [
        "v", "cast({string} as binary)", "coalesce({binary}, {binary})", "concat({binary}, v)",
    ],
}  # fmt: skip
LEAVES = {k: [t for t in v if "{" not in t] for k, v in TEMPLATES.items()}
KINDS = sorted(TEMPLATES)


def constants(rng: random.Random, name: str) -> str | None:
    """A constant or a word for a place in a template; None where an expression belongs."""
    if name in _WORDS:
        return rng.choice(_WORDS[name].split())
    if name == "word":
        return quote(text(rng)[:6])
    if name == "pattern":
        return f"'{rng.choice(PATTERNS)}'"
    if name == "like":
        return "'" + rng.choice(["a%", "%b", "_", "%", "%c%", "a_b%", "", "%é%", "\\\\%a%"]) + "'"
    if name == "index":
        return str(rng.randint(0, 3))
    if name == "pad":
        return str(rng.randint(-3, 30))
    return str(rng.choice(SMALL)) if name == "small" else None


def expression(rng: random.Random, kind: str, depth: int) -> str:
    """SQL text of a type, nested to a depth."""
    template = rng.choice(LEAVES[kind] if depth == 0 else TEMPLATES[kind])

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        known = constants(rng, name)
        if known is not None:
            return known
        if name == "any":
            name = rng.choice(["int", "long", "double", "string", "bool", "date", "time", "binary"])
        return expression(rng, name, depth - 1)

    return re.sub(r"\{(\w+)\}", fill, template)


def functions_named() -> set[str]:
    """The functions that some template calls."""
    words = {w for group in _WORDS.values() for w in group.split()}
    return words | {w for v in TEMPLATES.values() for t in v for w in re.findall(r"(\w+)\(", t)}
