"""Bytes made worse at random."""

from __future__ import annotations

import random

_NASTY = [
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b'"',
    b"\\",
    b",",
]


def damaged(rng: random.Random, data: bytes, most: int = 3) -> bytes:
    """The bytes with a few of them changed, cut out, doubled or put in."""
    for _ in range(rng.randint(1, most)):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.choice([1, 1, 2, 8, 40]))
        piece = rng.choice(
            [
                b"",
                data[at:end] * 2,
                bytes([rng.randrange(256)]),
                rng.choice(_NASTY),
                data[at:end][::-1],
            ]
        )
        data = data[:at] + piece + data[end if rng.random() < 0.7 else at :]
    return data[: rng.randint(0, len(data))] if rng.random() < 0.1 else data
