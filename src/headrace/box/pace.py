"""How large bundles should be."""

from __future__ import annotations

import math

import numpy as np

from headrace.box.cascade import Cascade

LEAST, MOST = 1 << 10, 1 << 19
"""The fewest and the most records of a bundle when its size adapts."""


class Pace:
    """How large bundles should be, by what they cost and how many wait.

    A bundle is to take about 4 ms, so that a watermark never waits long behind one; of bounded
    input 6 ms, and where bundles pile up, up to 16 ms, so that dispatching costs less. An epoch is
    to have as many bundles as there are workers, so that all of them work on one window and its
    tables stay in the cache (StreamBox §8). But a bundle is never so small that what each costs,
    however few its records, is more than a tenth of it, and with many workers not so small that
    they all want the interpreter lock at once.
    """

    def __init__(self, fixed: int | None, workers: int, cascade: Cascade) -> None:
        self.fixed, self.workers, self.cascade = fixed, workers, cascade
        self.weight = 0.0
        self.sums = np.zeros(5)
        """Of sizes, times, their squares and their products, the older ones fading."""
        self.per_bundle, self.per_record = 0.0, 0.5e-6
        self.turn = 0

    def done(self, records: int, seconds: float) -> None:
        """A bundle from the ingress cost so much: time it worked, never time it waited."""
        if records < 16 or seconds <= 0:
            return
        n, t = float(records), seconds
        self.weight = _FADE * self.weight + 1
        self.sums = _FADE * self.sums + (n, t, n * n, t * t, n * t)
        size, time, sizes, times, products = (self.sums / self.weight).tolist()
        spread = max(sizes - size * size, 1e-9)
        # A line through what was seen: as steep as it may well be, so that what a bundle costs by
        # itself counts only where it shows. Where it does not, a line through the origin.
        steep = (products - size * time) / spread
        rest = max(0.0, times - time * time - steep * steep * spread)
        doubt = math.sqrt(rest / (spread * max(1.0, self.weight - 2)))
        slope = max(min(time / size, steep + doubt), 0.05 * time / size, 1e-9)
        self.per_bundle = min(max(0.0, time - slope * size), _MOST_BY_ITSELF)
        self.per_record = max(slope, (time - self.per_bundle) / size)

    def rows(self, epoch: float = math.inf, *, bounded: bool = False) -> int:
        """The records to put into a bundle now, where an epoch has about so many."""
        if self.fixed is not None:
            return self.fixed
        waiting = self.cascade.in_flight / (2 * self.workers)
        span, apart = _OF_BOUNDED if bounded else _AS_THEY_COME
        most = min(_LONGEST, span * max(1.0, waiting))
        least = max(_SHARE * self.per_bundle, apart * self.workers)
        rows = max(least / self.per_record, min(most / self.per_record, epoch / self.workers))
        self.turn = (self.turn + 1) % len(_TURNS)  # now and then another, so that both can be told
        return int(min(MOST, max(LEAST, rows * _TURNS[self.turn])))


_AS_THEY_COME, _OF_BOUNDED = (0.004, 0.0001), (0.006, 0.0003)
"""How long a bundle takes, and how far apart bundles should end over all workers, in seconds."""
_LONGEST = 0.016
"""How long one takes where many wait."""
_MOST_BY_ITSELF = 0.0003
"""What a bundle costs however few its records, in seconds, at most: beyond that the line through
what was seen is bent, as caches have it."""
_FADE = 0.95
_SHARE = 10
"""How many times what it costs to handle a bundle its records are to cost."""
_TURNS = (1.0,) * 7 + (0.5,) + (1.0,) * 7 + (3.0,)
