"""Connected components: of each vertex the least vertex that it is connected with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace as hr
from headrace.apps import App
from headrace.apps.graphs import clusters, read_edges, write_edges


def pipelines(path: str, form: str = "parquet") -> dict[str, hr.Stream]:
    edges = hr.read_parquet(path)
    both = edges.union(edges.select(src="dst", dst="src")).distinct()

    def spread(labels: hr.Stream) -> hr.Stream:
        """Each vertex takes the least label of its neighbours and its own."""
        told = labels.join(both, left_on="vertex", right_on="src").select("label", vertex="dst")
        return labels.union(told.select("vertex", "label")).group_by("vertex").agg(
            label=hr.min("label")
        )  # fmt: skip

    labels = both.distinct("src").select(vertex="src", label="src")
    found = labels.iterate(
        spread, reduce=hr.sum("label"), until=lambda total, before: total == before
    )
    return {"components": found}


def reference(path: str) -> dict[str, set[tuple[Any, ...]]]:
    parents: dict[int, int] = {}

    def root(vertex: int) -> int:
        while parents.setdefault(vertex, vertex) != vertex:
            vertex = parents[vertex]
        return vertex

    for source, target in read_edges(path):
        low, high = sorted((root(source), root(target)))
        parents[high] = low
    return {"components": {(vertex, root(vertex)) for vertex in parents}}


def generate(folder: Path, records: int, seed: int, form: str) -> Path:
    return write_edges(folder, f"clusters-{records}-{seed}.parquet", clusters(records, seed))


APP = App(
    "connected_components", "connected components of a graph", ("parquet",), 500_000,
    generate, pipelines, reference,
)  # fmt: skip
