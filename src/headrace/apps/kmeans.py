"""K-means (RStream §V-B): points and the nearest of k centroids, until those hardly move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.apps import App

K, NEAR, AT_MOST = 50, 0.1, 30
_BLOCK = 256
SUMS = {"c": "bigint", "x": "double", "y": "double", "n": "bigint"}


@numba.njit(nogil=True, cache=True, fastmath=True)  # type: ignore[untyped-decorator]
def nearest(xs: Any, ys: Any, cx: Any, cy: Any, x: Any, y: Any, n: Any) -> None:
    """Add each point to the sums of its nearest centroid, the first of several."""
    best, which = np.empty(_BLOCK), np.empty(_BLOCK, np.int64)
    for start in range(0, xs.size, _BLOCK):
        size = min(_BLOCK, xs.size - start)
        best[:] = np.inf
        for c in range(cx.size):  # many points at once for each, so that the machine can
            for i in range(size):
                dx, dy = xs[start + i] - cx[c], ys[start + i] - cy[c]
                far = dx * dx + dy * dy
                closer = far < best[i]
                best[i] = far if closer else best[i]
                which[i] = c if closer else which[i]
        for i in range(size):
            c = which[i]
            x[c] += xs[start + i]
            y[c] += ys[start + i]
            n[c] += 1


def sums(batch: pa.RecordBatch, cx: Any, cy: Any) -> pa.RecordBatch:
    """How many points each centroid has, and their sums."""
    x, y, n = np.zeros(cx.size), np.zeros(cx.size), np.zeros(cx.size, np.int64)
    nearest(batch["x"].to_numpy(), batch["y"].to_numpy(), cx, cy, x, y, n)
    return pa.record_batch({"c": np.arange(cx.size), "x": x, "y": y, "n": n})


def assign(points: hr.Stream, centroids: pa.Table) -> hr.Stream:
    cx, cy = (centroids[name].to_numpy() for name in ("x", "y"))
    parts = points.map_batches(lambda batch: sums(batch, cx, cy), schema=SUMS)
    return parts.group_by("c").agg(x=hr.sum("x"), y=hr.sum("y"), n=hr.sum("n"))


def move(centroids: pa.Table, found: pa.Table) -> pa.Table:
    """Each centroid to the mean of its points; one without points stays."""
    moved = {name: centroids[name].to_numpy().copy() for name in ("x", "y")}
    c, n = found["c"].to_numpy(), found["n"].to_numpy()
    there = n > 0
    for name, values in moved.items():
        values[c[there]] = found[name].to_numpy()[there] / n[there]
    return pa.table(moved)


def settled(centroids: pa.Table, before: pa.Table) -> bool:
    apart = [centroids[name].to_numpy() - before[name].to_numpy() for name in ("x", "y")]
    return bool(np.hypot(*apart).max() < NEAR)


def pipelines(path: str, form: str = "parquet") -> dict[str, hr.Stream]:
    first = next(pq.ParquetFile(path).iter_batches(K, columns=["x", "y"]))
    points = hr.read_parquet(path)
    start = pa.Table.from_batches([first])
    found = points.cycle(state=start, body=assign, update=move, until=settled, at_most=AT_MOST)
    return {"centroids": found}


def reference(path: str) -> dict[str, set[tuple[Any, ...]]]:
    table = pq.read_table(path)
    points = list(zip(table["x"].to_pylist(), table["y"].to_pylist(), strict=True))
    centroids = points[:K]
    for _ in range(AT_MOST):
        groups: list[list[tuple[float, float]]] = [[] for _ in centroids]
        for x, y in points:
            far = [(x - a) * (x - a) + (y - b) * (y - b) for a, b in centroids]
            groups[far.index(min(far))].append((x, y))
        before = centroids
        centroids = [
            (sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) if g else c
            for g, c in zip(groups, centroids, strict=True)
        ]
        pairs = zip(centroids, before, strict=True)
        if max(np.hypot(a[0] - b[0], a[1] - b[1]) for a, b in pairs) < NEAR:
            break
    return {"centroids": set(centroids)}


def generate(folder: Path, records: int, seed: int, form: str) -> Path:
    """Points around a hundred places, in steps of 1/1024 so that sums are exact."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"points-{records}-{seed}.parquet"
    if path.exists():
        return path
    rng = np.random.default_rng([seed, 20])
    places = rng.uniform(0, 1000, (100, 2))
    points = places[rng.integers(0, 100, records)] + rng.normal(0, 40, (records, 2))
    x, y = (np.round(points * 1024) / 1024).T
    draft = path.with_name(f".{path.name}")
    table = pa.table({"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)})
    pq.write_table(table, draft, row_group_size=1 << 20, use_dictionary=False)
    return draft.rename(path)


APP = App(
    "kmeans", "k-means of points in the plane, 50 centroids (RStream)", ("parquet",), 10_000_000,
    generate, pipelines, reference,
)  # fmt: skip
