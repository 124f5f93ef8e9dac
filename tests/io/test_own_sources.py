"""Sources a person writes, and objects that only look like a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing
from headrace.io.source import Source, Split, as_source, sequences

NUMBERS = pa.schema([("n", pa.int64())])


@dataclass
class Part:
    """No more than a split must have."""

    start: int
    end: int

    def read(self, columns: Any) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": list(range(self.start, self.end))})


class Upto:
    """No more than a source must have."""

    schema = NUMBERS

    def __init__(self, end: int) -> None:
        self.end = end

    def splits(self, parallelism: int) -> list[Part]:
        half = self.end // 2
        return [Part(0, half), Part(half, self.end)]

    def __str__(self) -> str:
        return f"numbers up to {self.end}"


class OwnPart(Part, Split):
    pass


class OwnUpto(Source):
    """The same as a subclass."""

    schema = NUMBERS

    def __init__(self, end: int) -> None:
        self.end = end

    def splits(self, parallelism: int) -> list[Split]:
        half = self.end // 2
        return [OwnPart(0, half), OwnPart(half, self.end)]

    def __str__(self) -> str:
        return f"numbers up to {self.end}"


@pytest.mark.parametrize("kind", [Upto, OwnUpto])
def test_a_small_source(engine: Any, kind: Any) -> None:
    stream = hr.from_source(kind(10))
    assert stream.bounded
    assert "numbers up to 10" in stream.explain(on=engine)
    assert sorted(stream.collect(on=engine)["n"].to_pylist()) == list(range(10))
    events = [testing.records({"n": 100})]
    endless = testing.script(events, schema={"n": "bigint"}, bounded=False, ends=True)
    job = stream.union(endless).start(on=engine)
    assert job.wait(60)
    assert sorted(job.result()["n"].to_pylist()) == [*range(10), 100]


def test_a_small_source_that_does_not_end() -> None:
    class Twice(Upto):
        bounded = False
        watermarks = True

    stream = hr.from_source(Twice(4))
    assert not stream.bounded
    job = stream.start(on="box")
    assert job.wait(60)
    assert sorted(job.result()["n"].to_pylist()) == [0, 1, 2, 3]


def test_what_a_source_lacks_has_a_default() -> None:
    for source in (as_source(Upto(2)), OwnUpto(2)):
        assert source is not None
        assert source.bounded is True
        assert source.watermarks is False
        assert source.nbytes == 0
        assert source.errors() is None
        assert str(source) == "numbers up to 2"
        assert source.schema == NUMBERS
    assert as_source(source) is source
    assert as_source(3) is None


def test_an_object_says_what_it_is_with_the_same_attributes() -> None:
    class Told(Upto):
        bounded = False
        watermarks = True

        @property
        def nbytes(self) -> int:
            return 8 * self.end

        def errors(self) -> Any:
            return Upto(1)

    source = as_source(Told(3))
    assert source is not None
    assert (source.bounded, source.watermarks, source.nbytes) == (False, True, 24)
    assert str(source.errors()) == "numbers up to 1"
    assert isinstance(source.errors(), Source)


def test_splits_of_one_sequence_are_put_together() -> None:
    class Named(Part):
        sequence = "a"

    class OwnNamed(OwnPart):
        sequence = "b"

    splits: list[Any] = [Named(0, 1), Named(1, 2), OwnNamed(2, 3), OwnNamed(3, 4)]
    splits += [Part(4, 5), OwnPart(5, 6)]
    joined = sequences(splits)
    got = [[n for b in s.read(["n"]) for n in b["n"].to_pylist()] for s in joined]
    assert got == [[0, 1], [2, 3], [4], [5]]


class Refusing(Part):
    def read(self, columns: Any) -> Any:
        raise hr.BadRecord("the first number is not one")


class RefusingSource(Upto):
    def splits(self, parallelism: int) -> list[Part]:
        return [Refusing(0, 1)]


def test_what_a_split_says_when_it_is_opened_is_told_as_it_is() -> None:
    for end in (lambda s: s.collect(on="box"), lambda s: s.start(on="box").wait(60)):
        with pytest.raises(hr.BadRecord, match=r"^the first number is not one"):
            end(hr.from_source(RefusingSource(3)))
