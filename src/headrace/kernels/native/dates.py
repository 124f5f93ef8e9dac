"""Reading dates and times by a pattern of digits, such as ``MM/dd/yyyy HH:mm``.

A pattern is a list of steps: ``kind`` says which field the digits are (or that a byte must stand
there), ``low`` and ``high`` how many digits it takes, or which byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

YEAR, MONTH, DAY, HOUR, MINUTE, SECOND, MILLI, MICRO, BYTE = range(9)


@njit(nogil=True, cache=True)
def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a date of the Gregorian calendar."""
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    shifted = month - 3 if month > 2 else month + 9
    of_year = (153 * shifted + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@njit(nogil=True, cache=True, inline="always")
def _days_in(year: int, month: int) -> int:
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return 29 if leap else 28
    return 30 if month in (4, 6, 9, 11) else 31


@njit(nogil=True, cache=True)
def read_times(
    data: Any, offsets: Any, valid: Any, kind: Any, low: Any, high: Any, micros: Any
) -> int:
    """Microseconds since 1970 of each text; the first row that breaks the pattern, or -1."""
    nulls = valid.size > 0
    for row in range(offsets.size - 1):
        micros[row] = 0
        if nulls and not valid[row]:
            continue
        at = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        year, month, day, hour, minute, second, fraction = 1970, 1, 1, 0, 0, 0, 0
        for step in range(kind.size):
            if kind[step] == BYTE:
                if at >= end or data[at] != low[step]:
                    return row
                at += 1
                continue
            value = 0
            digits = 0
            while at < end and digits < high[step] and 48 <= data[at] <= 57:
                value = value * 10 + (np.int64(data[at]) - 48)
                digits += 1
                at += 1
            if digits < low[step]:
                return row
            field = kind[step]
            if field == YEAR:
                year = value
            elif field == MONTH:
                month = value
            elif field == DAY:
                day = value
            elif field == HOUR:
                hour = value
            elif field == MINUTE:
                minute = value
            elif field == SECOND:
                second = value
            elif field == MILLI:
                fraction = value * 1000
            else:
                fraction = value
        if at != end or month < 1 or month > 12 or day < 1 or day > _days_in(year, month):
            return row
        if hour > 23 or minute > 59 or second > 59 or year < 1:
            return row
        seconds = days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
        micros[row] = seconds * 1000000 + fraction
    return -1
