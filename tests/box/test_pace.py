"""How large bundles become."""

from __future__ import annotations

import math

import pytest

from headrace.box.cascade import Cascade
from headrace.box.pace import LEAST, MOST, Pace


def paced(
    workers: int, cost: tuple[float, float], sizes: range = range(10_000, 90_000, 997)
) -> Pace:
    """One that has seen bundles that cost so much each and so much a record."""
    pace = Pace(None, workers, Cascade([]))
    by_itself, each = cost
    for size in sizes:
        pace.done(size, by_itself + each * size)
    return pace


def usual(pace: Pace, epoch: float = math.inf, bounded: bool = False) -> int:
    """The size of most bundles."""
    return sorted(pace.rows(epoch, bounded=bounded) for _ in range(32))[16]


def test_a_bundle_takes_some_milliseconds() -> None:
    pace = paced(2, (0.0, 1e-7))
    assert usual(pace) == pytest.approx(40_000, rel=0.1)
    assert usual(pace, bounded=True) == pytest.approx(60_000, rel=0.1)


def test_an_epoch_has_a_bundle_for_each_worker() -> None:
    assert usual(paced(8, (0.0, 1e-7)), epoch=160_000) == pytest.approx(20_000, rel=0.01)


def test_what_a_bundle_costs_by_itself_is_a_tenth_of_it_at_most() -> None:
    pace = paced(2, (0.0002, 1e-8))
    assert pace.per_bundle == pytest.approx(0.0002, rel=0.2)
    assert usual(pace, epoch=1000) * 1e-8 >= 0.8 * 10 * 0.0002


def test_many_workers_get_bundles_that_keep_the_interpreter_lock_free() -> None:
    few, many = paced(2, (0.0, 1e-7)), paced(64, (0.0, 1e-7))
    assert usual(many, epoch=1000) >= 8 * usual(few, epoch=1000)


def test_costs_that_do_not_follow_size_do_not_make_records_look_cheap() -> None:
    pace = paced(2, (0.004, 0.0))
    assert pace.per_bundle <= 0.0003
    assert usual(pace) < 2 * 90_000


def test_a_size_that_was_asked_for_is_kept() -> None:
    assert Pace(77, 2, Cascade([])).rows(10) == 77
    assert LEAST <= usual(paced(2, (0.0, 1.0), range(16, 40))) <= MOST
