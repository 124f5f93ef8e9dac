"""The lines of a bounded text that match a regular expression."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import headrace as hr
from headrace import col
from headrace.apps import App
from headrace.apps.lines import write_lines

PATTERN = r"\b[aeiou]{3,}\w*\b"


def pipelines(path: str, form: str = "text") -> dict[str, hr.Stream]:
    lines = hr.read_parquet(path) if form == "parquet" else hr.read_text(path)
    return {"matches": lines.filter(col("line").matches(PATTERN))}


def reference(path: str) -> dict[str, set[tuple[Any, ...]]]:
    lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")
    return {"matches": {(line,) for line in lines if re.search(PATTERN, line, re.ASCII)}}


APP = App(
    "search", "keep the lines that match a pattern", ("text", "parquet"), 1_000_000,
    write_lines, pipelines, reference,
)  # fmt: skip
