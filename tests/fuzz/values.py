"""Random values of every type, the awkward ones among them."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa

LETTERS = "abcXYZ 019_-,.;'\"\\%\n\tßİıÉéΣσςK日😀"
WORDS = ["", "a", "ab", " a ", "12", "-7", "1.5e3", "true", "no", "NaN", "2024-02-29", "a,b;c"]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e15, -1e300, math.inf, -math.inf, math.nan, 1e-9]
_START = datetime.datetime(1900, 1, 1)


def text(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return rng.choice(WORDS)
    letters = LETTERS if rng.random() < 0.5 else LETTERS[:18]
    return "".join(rng.choice(letters) for _ in range(rng.choice([0, 1, 3, 8, 20, 40])))


def value(rng: random.Random, kind: pa.DataType) -> Any:
    """A value of a type; never null itself, though its parts may be."""
    t = pa.types
    if t.is_integer(kind):
        low, high = (0, 1 << kind.bit_width) if t.is_unsigned_integer(kind) else (
            -(1 << (kind.bit_width - 1)), 1 << (kind.bit_width - 1)
        )  # fmt: skip
        return rng.choice(
            [rng.randint(0, 9), rng.randint(0, 9), low, high - 1, rng.randrange(low, high)]
        )
    if t.is_floating(kind):
        x = rng.choice([rng.choice(DOUBLES), rng.randint(-999, 999) / 8, rng.uniform(-1e6, 1e6)])
        if kind.bit_width < 64:
            with np.errstate(over="ignore"):
                x = float(np.float32(x) if kind.bit_width == 32 else np.float16(x))
        return x
    if t.is_boolean(kind):
        return rng.random() < 0.5
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return text(rng)
    if t.is_fixed_size_binary(kind) and not t.is_decimal(kind):
        return rng.randbytes(kind.byte_width)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return text(rng).encode() if rng.random() < 0.7 else rng.randbytes(rng.randint(0, 6))
    if t.is_date(kind):
        return (_START + datetime.timedelta(days=rng.randrange(109_000))).date()
    if t.is_timestamp(kind):
        micros = rng.randrange(300 * 366 * 86400 * 1_000_000)
        if rng.random() < 0.5:
            micros -= micros % 1_000_000
        moment = _START + datetime.timedelta(microseconds=micros)
        return moment.replace(tzinfo=datetime.UTC) if kind.tz else moment
    if t.is_decimal(kind):
        digits = rng.randint(1, min(kind.precision, 7))
        return decimal.Decimal(rng.randrange(-(10**digits) + 1, 10**digits)).scaleb(-kind.scale)
    if t.is_duration(kind):
        return datetime.timedelta(seconds=rng.randrange(-100_000, 100_000))
    if t.is_time(kind):
        return datetime.time(rng.randrange(24), rng.randrange(60))
    if t.is_fixed_size_list(kind):
        return [maybe(rng, kind.value_type) for _ in range(kind.list_size)]
    if t.is_list(kind) or t.is_large_list(kind):
        return [maybe(rng, kind.value_type) for _ in range(rng.choice([0, 1, 2, 4, 70]))]
    if t.is_struct(kind):
        return {f.name: maybe(rng, f.type) for f in kind}
    if t.is_map(kind):
        keys = {value(rng, kind.key_type) for _ in range(rng.randint(0, 3))}
        return [(k, maybe(rng, kind.item_type)) for k in keys]
    if t.is_dictionary(kind):
        return value(rng, kind.value_type)
    assert t.is_null(kind), kind
    return None


def maybe(rng: random.Random, kind: pa.DataType) -> Any:
    """A value, or null."""
    return None if rng.random() < 0.15 else value(rng, kind)
