"""Transitive closure: all pairs of vertices with a way from one to the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace as hr
from headrace.apps import App
from headrace.apps.graphs import clusters, read_edges, write_edges


def pipelines(path: str, form: str = "parquet") -> dict[str, hr.Stream]:
    edges = hr.read_parquet(path).distinct()
    steps = edges.rename(src="mid", dst="far")

    def longer(ways: hr.Stream) -> hr.Stream:
        """The ways there are, and those with one step more."""
        more = ways.join(steps, left_on="dst", right_on="mid").select("src", dst="far")
        return ways.union(more).distinct()

    ways = edges.iterate(longer, reduce=hr.count(), until=lambda n, before: n == before)
    return {"ways": ways}


def reference(path: str) -> dict[str, set[tuple[Any, ...]]]:
    after: dict[int, set[int]] = {}
    for source, target in read_edges(path):
        after.setdefault(source, set()).add(target)
    ways = set()
    for start in after:
        found: set[int] = set()
        ahead = list(after[start])
        while ahead:
            vertex = ahead.pop()
            if vertex not in found:
                found.add(vertex)
                ahead += after.get(vertex, ())
        ways |= {(start, vertex) for vertex in found}
    return {"ways": ways}


def generate(folder: Path, records: int, seed: int, form: str) -> Path:
    edges = clusters(records, seed, size=20)
    return write_edges(folder, f"small-clusters-{records}-{seed}.parquet", edges)


APP = App(
    "transitive_closure", "all pairs that are connected by a way", ("parquet",), 100_000,
    generate, pipelines, reference,
)  # fmt: skip
