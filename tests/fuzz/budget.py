"""How long a fuzzer runs, and where its random choices come from.

All fuzzers together take ``HEADRACE_FUZZ_SECONDS`` (60 unless set). Every round has its own seed,
which a failure names: ``HEADRACE_FUZZ_SEED=<that seed>`` makes it the first round of a run. Without
it the first seed is always the same, so that a run can be repeated; pass another seed to look for
new failures.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def first_seed() -> int:
    """The seed of the first round."""
    return int(os.environ.get("HEADRACE_FUZZ_SEED") or 1)


def seeds(share: float) -> Iterator[int]:
    """Seeds, one a round, for ``share`` seconds of a minute; at least one.

    The first round is not counted: it imports and compiles what the others use.
    """
    scale = float(os.environ.get("HEADRACE_FUZZ_SECONDS", "60")) / 60
    seed = first_seed()
    yield seed
    end = time.monotonic() + share * scale
    while time.monotonic() < end:
        seed += 1
        yield seed


@contextmanager
def named(seed: int) -> Iterator[None]:
    """Adds the seed of a round to whatever goes wrong in it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"replay this round with HEADRACE_FUZZ_SEED={seed}")
        raise


def rounds(share: float, check: Callable[[random.Random], object]) -> None:
    """Run a check again and again, with a new source of random choices each time."""
    for seed in seeds(share):
        with named(seed):
            check(random.Random(seed))
