"""Compile the kernels of a run before it reads its first record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from sqlglot import exp

from headrace.box.arrival import Reader
from headrace.box.cascade import Vertex
from headrace.box.host import Hosted, Stateless
from headrace.box.ingress import Ingress
from headrace.kernels.samples import sample_batch
from headrace.operators.rehearsal import SIZES, rehearse_chain, rehearse_operator


def rehearse(vertices: Iterable[Vertex], ingresses: Iterable[Ingress], workers: int) -> None:
    """Run each step of a graph on sample records; see ``operators/rehearsal.py``."""
    for ingress in ingresses:
        rehearse_chain(ingress.splits.chain)
        _rehearse_arrival(ingress)
    for vertex in vertices:
        transform = vertex.transform
        if isinstance(transform, Stateless):
            rehearse_chain(transform.chain)
        elif isinstance(transform, Hosted):
            for chain in transform.operator.chains:
                rehearse_chain(chain)
            shards = transform.shards
            rehearse_operator(transform.operator, shards.count, workers, is_kept=shards.is_kept)


def _rehearse_arrival(ingress: Ingress) -> None:
    """Tell late records from others, unless a Python function announces the watermarks."""
    event = ingress.event
    if event is None or event.by_clock:
        return
    if event.punctuation is None or isinstance(event.punctuation, exp.Expr):
        with contextlib.suppress(Exception):
            reader = Reader(0, "")
            for _ in range(2):
                batch = sample_batch(ingress.splits.schema, SIZES[0])
                ingress.arrivals.take(reader, batch)
