"""What a source's watermark waits for, in words; the same on both engines."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.windows import BEGINNING, show_duration, show_time


def waiting_for(
    promised: int,
    splits: Mapping[str, int],
    idle: Collection[str],
    after: int | None,
    follows: bool,
) -> str:
    """Why the watermark does not move on, as far as the source knows; nothing if it may.

    ``splits`` are the watermarks of those that have not ended, ``idle`` the silent ones among
    them, ``after`` is how long a split may be silent, ``follows`` whether the watermark then goes
    by the clock.
    """
    if not splits:
        return ""
    active = {name: mark for name, mark in splits.items() if name not in idle}
    if not active:
        if follows:
            return ""
        quiet = "" if after is None else f" for {show_duration(after)}"
        return (
            f"every split has been silent{quiet}, so windows that end after {show_time(promised)} "
            "stay open until a record comes; event_time(…, when_idle='advance') closes them by the "
            "clock"
        )
    slowest, mark = min(active.items(), key=lambda item: item[1])
    others = [m for name, m in splits.items() if name != slowest]
    if mark == BEGINNING and others and max(others) > BEGINNING:
        until = "" if after is None else f"; if it stays silent for {show_duration(after)}, no more"
        return f"split {slowest} has sent nothing yet, and holds back the watermark{until}"
    return ""
