"""Digests of text and bytes: md5, sha, crc32."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.errors import PlanError
from headrace.kernels.expressions.casts import cast
from headrace.kernels.expressions.kernel import Kernel, Scope, apply_arrays, function
from headrace.kernels.expressions.strings import STRING, nothing, text, whole


@function("md5")
def build_md5(scope: Scope, value: Kernel) -> Kernel:
    return _digest(value, "md5", lambda b: hashlib.md5(b).hexdigest())


@function("sha1", "sha")
def build_sha1(scope: Scope, value: Kernel) -> Kernel:
    return _digest(value, "sha1", lambda b: hashlib.sha1(b).hexdigest())


@function("sha2")
def build_sha2(scope: Scope, value: Kernel, bits: Kernel) -> Kernel:
    size = whole(bits, "the number of bits", "sha2")
    if size is None:
        return nothing(cast(value, STRING))
    size = size or 256
    if size not in (224, 256, 384, 512):
        raise PlanError(f"sha2 takes 224, 256, 384 or 512 bits, not {size}")
    return _digest(value, "sha2", lambda b: hashlib.new(f"sha{size}", b).hexdigest())


@function("crc32")
def build_crc32(scope: Scope, value: Kernel) -> Kernel:
    return _digest(value, "crc32", zlib.crc32, pa.int64())


def _digest(
    value: Kernel, name: str, compute: Callable[[bytes], Any], kind: pa.DataType = STRING
) -> Kernel:
    if not pa.types.is_binary(value.type):
        value = text(value, name)

    def run(array: pa.Array) -> pa.Array:
        raw = array.cast(pa.binary())
        return pa.array([None if b is None else compute(b) for b in raw.to_pylist()], kind)

    return apply_arrays(kind, run, value)
