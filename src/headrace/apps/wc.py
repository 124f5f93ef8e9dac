"""Word count (RStream §V-B): tokens are runs of letters, lower-cased; how often is each there?"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import headrace as hr
from headrace import col
from headrace.apps import App
from headrace.apps.lines import write_lines


def pipelines(path: str, form: str = "text") -> dict[str, hr.Stream]:
    lines = hr.read_parquet(path) if form == "parquet" else hr.read_text(path)
    counts = (
        lines.flat_map(col("line").lower().split("[^a-z]+"), name="word")
        .filter(col("word") != "")
        .group_by("word")
        .agg(n=hr.count())
    )
    return {"words": counts}


def reference(path: str) -> dict[str, set[tuple[Any, ...]]]:
    text = Path(path).read_text(encoding="utf-8", errors="replace").lower()
    return {"words": set(Counter(re.findall("[a-z]+", text)).items())}


APP = App(
    "wc", "count the words of a text (RStream)", ("text", "parquet"), 1_000_000,
    write_lines, pipelines, reference,
)  # fmt: skip
