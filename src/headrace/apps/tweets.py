"""Tweets and sentiment (StreamBox §9): which words come with a change of mood?

One branch scores every tweet by a lexicon and keeps the seconds whose mean score moved by more
than a threshold against the second before; the other finds the most frequent words of each second.
Both are joined on the window.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace import col
from headrace.apps import StreamApp
from headrace.apps.lines import lines, vocabulary
from headrace.apps.streams import app, micros, times

MOVED, TOP = 0.002, 5


def lexicon() -> tuple[pa.Array, pa.Array]:
    """Words with a score from -5 to 5: every twentieth of the vocabulary, the common ones too."""
    words = vocabulary(1).take(pa.array(np.arange(3, 50_000, 20)))
    return words, pa.array(np.arange(len(words)) % 11 - 5.0)


def tables(records: int, seed: int, per_second: int, early: int) -> dict[str, pa.Table]:
    text = pa.chunked_array(list(lines(records, 1)), pa.string())
    return {"tweets": pa.table({"at": times(records, per_second, early, seed), "text": text})}


def scored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each word's score, nought if the lexicon does not have it."""
    words, scores = LEXICON
    found = scores.take(pc.index_in(batch.column("word"), words)).fill_null(0.0)
    return pa.record_batch({"at": batch.column("at"), "score": found})


LEXICON = lexicon()


def pipeline(inputs: dict[str, hr.Stream], window: Any) -> hr.Stream:
    words = (
        inputs["tweets"]
        .flat_map(col("text").lower().split("[^a-z]+"), name="word")
        .filter(col("word") != "")
    )
    mood = (
        words.map_batches(scored, schema={"at": "timestamp", "score": "double"})
        .window(window)
        .agg(mood=hr.mean("score"))
        .with_columns(one=1)
    )
    before = mood.rename(mood="mood_before", window_start="before_start", window_end="before_end")
    changed = (
        mood.join_within(before, on="one", before="1s")
        .filter(f"window_start = before_end and abs(mood - mood_before) > {MOVED}")
        .select("window_end", "before_end", "mood", "mood_before")
    )
    top = words.key_by("word").window(window).agg(n=hr.count()).window(window).top_k(TOP, by="n")
    return changed.join_within(top, on="window_end").select(
        "window_end", "mood", "mood_before", "word", "n"
    )


def reference(inputs: dict[str, pa.Table]) -> set[tuple[Any, ...]]:
    scores = dict(zip(*(part.to_pylist() for part in LEXICON), strict=True))
    table = inputs["tweets"]
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for at, text in zip(micros(table), table["text"].to_pylist(), strict=True):
        counts[at // 1_000_000].update(re.findall("[a-z]+", text))
    mood = {
        s: sum(scores.get(w, 0.0) * n for w, n in c.items()) / c.total() for s, c in counts.items()
    }
    found = set()
    for s, words in counts.items():
        if s - 1 in mood and abs(mood[s] - mood[s - 1]) > MOVED:
            for word, n in sorted(words.items(), key=lambda wn: (-wn[1], wn[0]))[:TOP]:
                found.add(((s + 1) * 1_000_000, mood[s], mood[s - 1], word, n))
    return found


APP = app(
    "tweets", "words that come with a change of mood (StreamBox)", 500_000,
    StreamApp(tables, pipeline, hr.tumbling("1s")), reference,
)  # fmt: skip
