"""A job that is killed: run as a process, with a source, a sink, and a moment to die.

``python -m tests.streams.victim '{"source": …, "sink": …}'`` prints ``started`` and ``ended``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import headrace as hr

SCHEMA = {"k": "string", "v": "bigint", "at": "timestamp"}


def die(*_: Any) -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


def total(state: int, row: Any) -> Any:
    return state + row.v, state + row.v


def waits(seen: list[Any], row: Any, timer: Any) -> Any:
    timer.after("300ms")
    return [*seen[-5:], row.before], {"v": row.v, "n": len(seen)}


def silent(seen: list[Any], time: Any, timer: Any) -> Any:
    return [], {"v": None, "n": -len(seen)}


def pipeline(said: dict[str, Any]) -> hr.Stream:
    """Counts by key and five seconds."""
    kind, where = said["source"], said["where"]
    if kind == "folder":
        stream = hr.read_csv(where, follow=True, limit=1, until="_DONE", schema=SCHEMA)
    elif kind == "files":
        stream = hr.read_csv(where, schema=SCHEMA)
    elif kind == "kafka":
        stream = hr.read_kafka("in", servers=where, schema=SCHEMA, limit=300)
    elif kind == "redis":
        stream = hr.read_redis(["in-0", "in-1"], url=where, schema=SCHEMA, limit=300)
    elif kind == "socket":
        stream = hr.read_socket("127.0.0.1", int(where), limit=200).select(
            k="split(line, ',')[0]",
            v="CAST(split(line, ',')[1] AS bigint)",
            at="CAST(split(line, ',')[2] AS timestamp)",
        )
    else:
        stream = hr.rate(1000, splits=2, upto=6000, limit=300).select(
            k="concat('k', value % 7)", v="value", at="timestamp_micros(value * 20000)"
        )
    timed = stream.event_time("at", delay="3s")
    if said.get("scan"):
        totals = timed.key_by("k").scan(total, 0, schema={"total": "bigint"}, keep="v")
        once = totals.key_by("k").running(n=hr.count(), most=hr.max("total"))
        lagged = once.key_by("k").lag(2, before="v")
        return lagged.key_by("k").scan(
            waits, [], schema={"v": "bigint", "n": "bigint"}, on_timer=silent
        )
    if said.get("pairs"):
        odd, even = timed.filter("v % 2 = 1"), timed.filter("v % 2 = 0")
        return odd.join_within(even, on="k", before="500ms", after="500ms")
    window = hr.sliding("6s", every="2s") if said.get("sliding") else hr.tumbling("5s")
    return timed.key_by("k").window(window).agg(n=hr.count(), total=hr.sum("v"))


def outlet(stream: hr.Stream, said: dict[str, Any]) -> Any:
    kind, to = said["sink"], said["to"]
    if kind in ("parquet", "csv", "json"):
        return getattr(stream, f"write_{kind}")(to, mode=said.get("mode", "error"))
    if kind == "postgres":
        return stream.write_postgres("results", to)
    if kind == "redis":
        return stream.write_redis("results", url=to)
    return stream.write_kafka("results", servers=to)


def crash(said: dict[str, Any]) -> None:
    """Die at a point of the third commit."""
    point, seen = said.get("crash"), [0]

    def dying(function: Any, when: str) -> Any:
        def called(*arguments: Any) -> Any:
            seen[0] += 1
            if seen[0] == said.get("after", 3) and when == "before":
                die()
            found = function(*arguments)
            if seen[0] >= said.get("after", 3):
                die()
            return found

        return called

    if point == "in the sink":
        import headrace.io.filesink as sinks

        sinks.save_json = die  # moved into place, but not yet said to count
    elif said.get("on") == "box":
        from headrace.box.checkpoint import Keeper
        from headrace.box.manifest import Files

        if point == "before the sink":
            Keeper.commit = dying(Keeper.commit, "before")  # type: ignore[method-assign]
        elif point == "after the sink":
            Keeper.commit = dying(Keeper.commit, "after")  # type: ignore[method-assign]
        elif point == "in the checkpoint":
            Files._save = dying(Files._save, "before")  # type: ignore[method-assign]
        elif point == "after the batch":
            Keeper.write = dying(Keeper.write, "after")  # type: ignore[method-assign]
    else:
        from headrace.spark.job import SparkJob
        from headrace.spark.sinks import Delivery

        if point == "before delivery":
            SparkJob._announce = dying(SparkJob._announce, "before")  # type: ignore[method-assign]
        elif point == "before the sink":
            Delivery.take = dying(Delivery.take, "before")  # type: ignore[method-assign]
        elif point == "after the sink":
            Delivery.take = dying(Delivery.take, "after")  # type: ignore[method-assign]
        elif point == "after the batch":
            SparkJob.deliver = dying(SparkJob.deliver, "after")  # type: ignore[method-assign]


def main() -> None:
    said = json.loads(sys.argv[1])
    crash(said)
    engine: Any = hr.Box(workers=said.get("workers", 2), commit_every="20ms", debug=True)
    if said.get("on") != "box":
        engine = hr.Spark(master="local[2]")
        _ = engine.session
    trigger = said.get("trigger")
    job = outlet(pipeline(said), said).start(
        on=engine, checkpoint=said["checkpoint"], trigger=trigger
    )
    print("started", flush=True)
    job.wait()
    print("ended", flush=True)


if __name__ == "__main__":
    main()
