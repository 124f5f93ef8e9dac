"""Rows in the order of their hashes: as any stable sort would put them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.native.hash_order import FEW
from headrace.kernels.order import by_hash


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=200))
def test_it_is_the_order_of_a_stable_sort(hashes):
    array = np.array(hashes, np.uint64)
    assert by_hash(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("same", [1, FEW - 1, FEW, FEW + 1, 5_000])
def test_hashes_that_are_spread_and_many_that_are_not(same):
    array = np.random.default_rng(1).integers(0, 2**64, 10_000, np.uint64)
    array[np.random.default_rng(2).permutation(array.size)[:same]] = array[0]
    assert by_hash(array).tolist() == np.argsort(array, kind="stable").tolist()
