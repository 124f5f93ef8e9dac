"""The iterative workloads as written without Headrace: PySpark by hand, MLlib, NumPy and Numba."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from headrace.apps import kmeans, pagerank


def _first(path: str) -> Any:
    """The first centroids."""
    first = next(pq.ParquetFile(path).iter_batches(kmeans.K, columns=["x", "y"]))
    return np.column_stack([first["x"].to_numpy(), first["y"].to_numpy()])


def kmeans_by_hand(session: Any, path: str) -> dict[str, pa.Table]:
    """A cached DataFrame, and a job with NumPy in the workers for each iteration."""
    points = session.read.parquet(path).cache()
    centroids = _first(path)
    try:
        for _ in range(kmeans.AT_MOST):
            shared = session.sparkContext.broadcast(centroids)

            def sums(batches: Any, shared: Any = shared) -> Any:
                c = shared.value
                for batch in batches:
                    p = np.column_stack([batch["x"].to_numpy(), batch["y"].to_numpy()])
                    far = (p[:, None, 0] - c[:, 0]) ** 2 + (p[:, None, 1] - c[:, 1]) ** 2
                    which = far.argmin(axis=1)
                    yield pa.record_batch(
                        {
                            "c": np.arange(len(c)),
                            "x": np.bincount(which, p[:, 0], len(c)),
                            "y": np.bincount(which, p[:, 1], len(c)),
                            "n": np.bincount(which, minlength=len(c)),
                        }
                    )

            parts = points.mapInArrow(sums, "c bigint, x double, y double, n bigint")
            found = parts.groupBy("c").sum("x", "y", "n").toArrow()
            before, centroids = centroids, centroids.copy()
            c, n = found["c"].to_numpy(), found["sum(n)"].to_numpy()
            there = n > 0
            for i, name in enumerate(("sum(x)", "sum(y)")):
                centroids[c[there], i] = found[name].to_numpy()[there] / n[there]
            shared.unpersist()
            if np.hypot(*(centroids - before).T).max() < kmeans.NEAR:
                break
    finally:
        points.unpersist()
    return _table(centroids)


def kmeans_mllib(session: Any, path: str) -> dict[str, pa.Table]:
    """MLlib's own, for as many iterations; it chooses the first centroids itself."""
    from pyspark.ml.clustering import KMeans
    from pyspark.ml.feature import VectorAssembler

    points = session.read.parquet(path)
    vectors = VectorAssembler(inputCols=["x", "y"], outputCol="features").transform(points)
    vectors = vectors.select("features").cache()
    try:
        algorithm = KMeans(k=kmeans.K, maxIter=kmeans.AT_MOST, tol=0.0, initMode="random", seed=1)
        return _table(np.array(algorithm.fit(vectors).clusterCenters()))
    finally:
        vectors.unpersist()


def kmeans_numba(session: Any, path: str) -> dict[str, pa.Table]:
    """The same native loop on threads over arrays, and nothing else."""
    table = pq.read_table(path)
    xs, ys = (table[name].to_numpy() for name in ("x", "y"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    edges = np.linspace(0, xs.size, 4 * (cores or 1) + 1).astype(int)
    centroids = _first(path)
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(kmeans.AT_MOST):
            cx, cy = (np.ascontiguousarray(centroids[:, i]) for i in (0, 1))

            def part(i: int, cx: Any = cx, cy: Any = cy) -> tuple[Any, Any, Any]:
                x, y, n = np.zeros(cx.size), np.zeros(cx.size), np.zeros(cx.size, np.int64)
                some = slice(edges[i], edges[i + 1])
                kmeans.nearest(xs[some], ys[some], cx, cy, x, y, n)
                return x, y, n

            x, y, n = (
                sum(each) for each in zip(*pool.map(part, range(len(edges) - 1)), strict=True)
            )
            before, centroids = centroids, centroids.copy()
            there = n > 0
            centroids[there] = np.column_stack([x[there] / n[there], y[there] / n[there]])
            if np.hypot(*(centroids - before).T).max() < kmeans.NEAR:
                break
    return _table(centroids)


def _table(centroids: Any) -> dict[str, pa.Table]:
    return {"centroids": pa.table({"x": centroids[:, 0], "y": centroids[:, 1]})}


def pagerank_by_hand(session: Any, path: str) -> dict[str, pa.Table]:
    """A cached DataFrame of links, joined with the ranks in each iteration."""
    edges = session.read.parquet(path)
    links = edges.join(edges.groupBy("src").agg((1 / F.count("*")).alias("share")), "src").cache()
    ranks = None
    try:
        for _ in range(pagerank.ROUNDS):
            if ranks is None:
                given = links.select("dst", F.col("share").alias("got"))
            else:
                rank = F.coalesce("rank", F.lit(1 - pagerank.DAMPING))
                joined = links.join(ranks, links.src == ranks.page, "left")
                given = joined.select("dst", (rank * F.col("share")).alias("got"))
            grouped = given.groupBy(F.col("dst").alias("page")).agg(F.sum("got").alias("got"))
            rank = F.lit(1 - pagerank.DAMPING) + F.lit(pagerank.DAMPING) * F.col("got")
            ranks = grouped.select("page", rank.alias("rank")).localCheckpoint()
        assert ranks is not None
        return {"ranks": ranks.toArrow()}
    finally:
        links.unpersist()


Baseline = Callable[[Any, str], dict[str, pa.Table]]
BASELINES: dict[str, dict[str, Baseline]] = {
    "kmeans": {"pyspark": kmeans_by_hand, "mllib": kmeans_mllib, "numpy": kmeans_numba},
    "pagerank": {"pyspark": pagerank_by_hand},
}
UNLIKE = {"mllib"}
"""Those whose results are others, for they begin elsewhere."""
