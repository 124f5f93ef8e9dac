"""Watermarks as shards and driver know them, and logs that must survive a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.io.kafka import KafkaSource
from headrace.io.messages import Decoding
from headrace.io.socket import Received
from headrace.spark.marks import LaneMarks, SourceMarks, settle
from headrace.windows import BEGINNING, FOREVER


def source(mark: int | None, *, idle: bool = False, ended: bool = False) -> SourceMarks:
    found = SourceMarks({} if mark is None else {"a": mark})
    found.take({"live": ["a"], "idle": ["a"] if idle else [], "ended": ended})
    return found


def test_a_source_promises_the_least_of_its_splits():
    marks = SourceMarks()
    marks.take({"split": "a", "mark": 10})
    assert marks.settle() == BEGINNING  # it is not known yet which splits there are
    marks.take({"live": ["a", "b"], "idle": [], "ended": False})
    assert marks.settle() == BEGINNING
    marks.take({"split": "b", "mark": 4})
    assert marks.settle() == 4
    marks.take({"live": ["a", "b"], "idle": ["b"], "ended": False})
    assert marks.settle() == 10
    marks.take({"live": ["a", "b"], "idle": [], "ended": False})
    assert marks.settle() == 10  # never back
    assert marks.floor("b", was_idle=True) == 10
    assert marks.floor("a", was_idle=False) == 10
    assert marks.floor("c", was_idle=False) == 10  # a split that is new


def test_a_silent_source_keeps_up_and_never_runs_ahead():
    silent, live, done = source(5, idle=True), source(30), source(70, ended=True)
    settle([silent, live, done])
    assert (silent.promised, live.promised, done.promised) == (30, 30, FOREVER)
    alone = source(5, idle=True)
    settle([alone, source(70, ended=True)])
    assert alone.promised == 5  # what has ended is no one to keep up with


def test_an_operator_waits_for_all_shards_of_what_feeds_it():
    marks = LaneMarks(2)
    marks.take({"from": "o1", "shard": 0, "mark": 9})
    assert marks.mark({"o1"}) == BEGINNING
    marks.take({"from": "o1", "shard": 1, "mark": 7})
    assert marks.mark({"o1"}) == 7
    again = LaneMarks.of(2, marks.said())
    again.take({"from": "s0", "split": "a", "mark": 3, "live": ["a"], "idle": [], "ended": False})
    again.settle({"s0"})
    assert again.mark({"o1", "s0"}) == 3


def test_a_log_of_lines_survives_a_kill_in_its_cleaning(tmp_path: Path):
    text = b"".join(b"line %d\n" % i for i in range(20))
    (tmp_path / "bytes-00000000000000000000").write_bytes(text)
    (tmp_path / "bytes-00000000000000000014").write_bytes(text[14:])  # the rest, already renamed
    log = Received("localhost", 1)
    log.keep_in(tmp_path)
    assert log.data(0, len(text)) == text
    assert [p.name for p in tmp_path.iterdir()] == ["bytes-00000000000000000000"]
    assert log.some_lines(0, len(text), 2) == 14
    assert log.whole_lines(14) == len(text)


def test_a_topic_that_was_made_anew_is_told(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("confluent_kafka")
    topic = KafkaSource("t", "localhost:1", Decoding.of("read_kafka", "text", None, "raise"))
    monkeypatch.setattr(KafkaSource, "_partitions", lambda self: [0])
    monkeypatch.setattr(KafkaSource, "_edges", lambda self, partition: (0, 50))
    assert topic.latest({"0": 20}) == {"0": 50}
    with pytest.raises(Exception, match="ends at 50, but 1000 have been read"):
        topic.latest({"0": 1000})
