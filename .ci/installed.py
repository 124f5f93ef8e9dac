"""Bounded and streaming jobs on both engines, by a package that was installed and nothing else.

Run by ``make test-install`` in an environment of its own, outside the source tree.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import headrace as hr


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "in").mkdir()
    lines = [{"k": f"k{i % 3}", "at": f"2026-01-01T00:00:{i % 60:02d}Z"} for i in range(60)]
    (folder / "in" / "a.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "in" / "_DONE").write_text("")
    schema = {"k": "string", "at": "timestamp"}
    spark = hr.Spark(master="local[2]")
    for engine in (spark, hr.Box(workers=2)):
        words = hr.from_items(["a b", "b c b"]).flat_map("split(value, ' ')", name="word")
        counts = words.group_by("word").agg(n=hr.count()).sort("word")
        assert counts.to_list(on=engine) == [("a", 1), ("b", 3), ("c", 1)]
        doubled = hr.from_items([1, 2]).map(lambda value: value * 2).to_list(on=engine)
        assert sorted(doubled) == [2, 4]
        stream = hr.read_json(folder / "in", schema=schema, follow=True, until="_DONE")
        windows = stream.event_time("at").key_by("k").window(hr.tumbling("30s"))
        outlet = windows.agg(n=hr.count()).write_parquet(folder / f"out-{engine.name}")
        assert outlet is not None
        assert outlet.start(on=engine).wait(120)
        found = hr.read_parquet(folder / f"out-{engine.name}").collect(on="box")
        assert sorted(found.column("n").to_pylist()) == [10] * 6, found
    spark.session.stop()
    print("2 passed, 0 failed")


if __name__ == "__main__":
    main()
