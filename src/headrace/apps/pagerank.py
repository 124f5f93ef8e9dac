"""PageRank: how much each page is linked to, by pages that are linked to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.apps import App
from headrace.apps.graphs import read_edges, web, write_edges

DAMPING, ROUNDS = 0.85, 10


def contributions(links: hr.Stream, ranks: Any) -> hr.Stream:
    """What each page gets of those that link to it."""

    def given(batch: pa.RecordBatch) -> dict[str, Any]:
        source = np.minimum(batch["src"].to_numpy(), ranks.size - 1)
        return {"dst": batch["dst"], "rank": ranks[source] * batch["share"].to_numpy()}

    shares = links.map_batches(given, schema={"dst": "bigint", "rank": "double"})
    return shares.group_by("dst").agg(rank=hr.sum("rank"))


def rank(ranks: Any, found: pa.Table) -> Any:
    """The ranks by page; the last one is that of all pages nobody links to."""
    pages, got = found["dst"].to_numpy(), found["rank"].to_numpy()
    after = np.full(int(pages.max()) + 2 if pages.size else 1, 1 - DAMPING)
    after[pages] += DAMPING * got
    return after


def listed(ranks: Any) -> pa.Table:
    linked = np.flatnonzero(ranks[:-1] > 1 - DAMPING)
    return pa.table({"page": linked, "rank": ranks[linked]})


def pipelines(path: str, form: str = "parquet") -> dict[str, hr.Stream]:
    edges = hr.read_parquet(path)
    shares = edges.group_by("src").agg(n=hr.count()).select("src", share="1 / n")
    links = edges.join(shares, on="src")
    ranks = links.cycle(
        state=np.ones(1), body=contributions, update=rank, at_most=ROUNDS, give=listed
    )
    return {"ranks": ranks}


def reference(path: str) -> dict[str, set[tuple[Any, ...]]]:
    edges = read_edges(path)
    links = Counter(source for source, _ in edges)
    ranks: dict[int, float] = {}
    for turn in range(ROUNDS):
        got: Counter[int] = Counter()
        for source, target in edges:
            now = ranks.get(source, 1 - DAMPING) if turn else 1.0
            got[target] += now / links[source]  # type: ignore[assignment]
        ranks = {page: 1 - DAMPING + DAMPING * sum for page, sum in got.items()}
    return {"ranks": set(ranks.items())}


def generate(folder: Path, records: int, seed: int, form: str) -> Path:
    return write_edges(folder, f"web-{records}-{seed}.parquet", web(records, seed))


APP = App(
    "pagerank", "ranks of the pages of a web", ("parquet",), 2_000_000,
    generate, pipelines, reference,
)  # fmt: skip
