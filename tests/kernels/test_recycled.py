"""Memory that is used again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.kernels import recycled
from headrace.kernels.columns import as_column


@pytest.fixture(autouse=True)
def fresh() -> None:
    gc.collect()
    recycled._free.clear()
    recycled._is_full[0] = False


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_once_nothing_refers_to_it() -> None:
    first = recycled.empty(1 << 16, np.int64)
    first[:] = 7
    where, column = address(first), as_column(first[100:200])
    del first
    gc.collect()
    second = recycled.empty(1 << 16, np.int64)  # the column is still there
    second[:] = 8
    assert address(second) != where
    assert column.to_pylist() == [7] * 100
    del column
    gc.collect()
    assert address(recycled.empty((2, 1 << 15), np.float64)) == where


def test_small_and_huge_arrays_are_the_systems() -> None:
    small = recycled.empty(10, np.int64)
    huge = recycled.empty(1 << 26, np.uint8)
    del small, huge
    gc.collect()
    assert not recycled._free


def kept() -> int:
    return sum(size * len(blocks) for size, blocks in recycled._free.items())


@pytest.fixture
def little() -> Iterator[None]:
    before = recycled._LIMIT[0]
    recycled._LIMIT[0] = 4 << 20
    yield
    recycled._LIMIT[0] = before


def test_no_more_is_kept_than_is_bounded(little: None) -> None:
    arrays = [recycled.empty(1 << 20, np.uint8) for _ in range(100)]
    del arrays
    gc.collect()
    assert 4 << 20 <= kept() <= 24 << 20
    recycled.forget()
    assert kept() == 1 << 20


def test_threads_never_share_a_block() -> None:
    faults = []

    def use(number: int) -> None:
        for turn in range(300):
            array = recycled.empty(1 << 15, np.int64)
            array[:] = number
            if turn % 7 == 0:
                array = array[5:]
            if (array != number).any():
                faults.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
