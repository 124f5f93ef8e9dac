"""What our own tests use, for yours: scripted input, a clock to turn, engines compared.

    from headrace.testing import script, records, watermark, idle, advance, same_answer

    trips = script(
        [
            records({"zone": "a", "at": seconds(1)}, {"zone": "b", "at": seconds(2)}),
            watermark(seconds(2)),
            records({"zone": "a", "at": seconds(3)}),
        ],
        schema={"zone": "string", "at": "timestamp"},
    )
    counts = trips.event_time("at").key_by("zone").window(hr.tumbling("2s")).agg(n=hr.count())
    same_answer(counts, engines=["box", "spark"])

A script is a list of events for each split. The source carries the watermarks that the script
says, so ``event_time`` needs no delay.
"""

from headrace.testing.answers import rows, same_answer
from headrace.testing.clock import TestClock
from headrace.testing.script import (
    ScriptedSource,
    advance,
    fail,
    idle,
    records,
    script,
    seconds,
    watermark,
)

__all__ = [
    "ScriptedSource",
    "TestClock",
    "advance",
    "fail",
    "idle",
    "records",
    "rows",
    "same_answer",
    "script",
    "seconds",
    "watermark",
]
