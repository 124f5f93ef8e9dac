"""Plots as SVG: lines or bars over named places, with the spread of each value, and tracks over
time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from headrace.bench.samples import Row

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 84, 72
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Told apart by most people who do not see all colours (Okabe and Ito)."""
DASHES = ("none", "9 5", "3 4", "12 4 3 4", "6 3", "2 6")
"""Of lines, so that one shows through another that it lies under."""
_GREY = "#666666"


@dataclass(frozen=True)
class Value:
    """A median, and how far it is to the quartiles at both sides together; None if unknown."""

    median: float | None
    spread: float = 0.0


def value_of(row: Row, name: str) -> Value:
    """What was measured under a name."""
    return Value(row.get(name), row.get(f"{name}_spread", 0.0))


def rate_of(row: Row, unit: float) -> Value:
    """Records a second, in a unit."""
    return Value(row["records_per_s"] / unit, row["records_per_s_spread"] / unit)


@dataclass(frozen=True)
class Plot:
    """Values by series and place: ``series["hybrid"][2]`` belongs to ``places[2]``."""

    title: str
    x_label: str
    y_label: str
    places: Sequence[str]
    series: dict[str, list[Value]]
    log: bool = False

    def bars(self) -> str:
        """A group of bars at each place."""
        drawing = self._drawing()
        step = drawing.room / max(1, len(self.places))
        width = 0.8 * step / max(1, len(self.series))
        for number, (name, values) in enumerate(self.series.items()):
            group = drawing.group(name, number)
            for place, value in enumerate(values):
                if value.median is None:
                    continue
                x = LEFT + step * (place + 0.1) + width * number
                y = drawing.y(value.median)
                _add(group, "rect", x=x, y=y, width=width * 0.92, height=drawing.bottom - y)
                drawing.whisker(group, x + width * 0.46, value, "#333333")
        return drawing.text()

    def lines(self) -> str:
        """A line through the places of each series."""
        drawing = self._drawing()
        step = drawing.room / max(1, len(self.places))
        for number, (name, values) in enumerate(self.series.items()):
            group = drawing.group(name, number)
            known = [(i, value) for i, value in enumerate(values) if value.median is not None]
            points = [(LEFT + step * (i + 0.5), value) for i, value in known]
            path = " ".join(f"{x:.1f},{drawing.y(v.median or 0):.1f}" for x, v in points)
            drawing.path(group, path, number)
            for x, value in points:
                _add(group, "circle", cx=x, cy=drawing.y(value.median or 0), r=4)
                drawing.whisker(group, x, value, COLOURS[number % len(COLOURS)])
        return drawing.text()

    def _drawing(self) -> _Drawing:
        known = [v for values in self.series.values() for v in values if v.median is not None]
        tops = [(v.median or 0) + (0 if self.log else v.spread / 2) for v in known]
        drawing = _Drawing(
            self.title, self.x_label, self.y_label, list(self.series), tops, self.log
        )
        drawing.named_places(self.places)
        if any(v.spread > 0 for v in known):
            drawing.remark("thin lines: from quartile to quartile")
        return drawing


@dataclass(frozen=True)
class Track:
    """Values over time: ``series["fixed"]`` has moments, in order, and the value of each."""

    title: str
    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]
    log: bool = False

    def lines(self, most: int = 800) -> str:
        """A line through the points of each series, of which at most so many are drawn."""
        values = [value for points in self.series.values() for _, value in points]
        names = list(self.series)
        drawing = _Drawing(self.title, self.x_label, self.y_label, names, values, self.log)
        end = max((moment for points in self.series.values() for moment, _ in points), default=1.0)
        drawing.moments(end)
        for number, (name, points) in enumerate(self.series.items()):
            group = drawing.group(name, number)
            some = points[:: max(1, -(-len(points) // most))]
            path = " ".join(f"{drawing.x(at):.1f},{drawing.y(value):.1f}" for at, value in some)
            drawing.path(group, path, 0)
        return drawing.text()


class _Drawing:
    """Axes, labels and a legend, and where values are."""

    def __init__(
        self,
        title: str,
        x_label: str,
        y_label: str,
        names: Sequence[str],
        values: Sequence[float],
        log: bool,
    ) -> None:
        self.log, self.names = log, names
        self.bottom, self.room = HEIGHT - BOTTOM, WIDTH - LEFT - RIGHT
        self.ticks = _decades(values) if log else _round_ticks(max(values, default=1.0))
        self.end = 1.0
        self.root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {WIDTH} {HEIGHT}",
                "width": str(WIDTH),
                "height": str(HEIGHT),
                "font-family": "sans-serif",
                "font-size": "12",
                "role": "img",
            },
        )
        _add(self.root, "title", title)
        _add(self.root, "rect", width=WIDTH, height=HEIGHT, fill="white")
        _add(
            self.root, "text", title, x=LEFT, y=24,
            font_size=15, font_weight="bold",
        )  # fmt: skip
        self._axes(x_label, y_label)
        self._legend()

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return self.bottom - share * (self.bottom - TOP)

    def x(self, moment: float) -> float:
        return LEFT + self.room * moment / self.end

    def group(self, name: str, number: int) -> ET.Element:
        colour = COLOURS[number % len(COLOURS)]
        group = _add(self.root, "g", fill=colour, stroke=colour, class_="series")
        _add(group, "title", name)
        return group

    def path(self, group: ET.Element, points: str, number: int) -> None:
        dash = DASHES[number % len(DASHES)]
        line = _add(group, "polyline", points=points, fill="none", stroke_width=2)
        if dash != "none":
            line.set("stroke-dasharray", dash)

    def whisker(self, group: ET.Element, x: float, value: Value, colour: str) -> None:
        if value.median is None or value.spread <= 0:
            return
        ends = [value.median - value.spread / 2, value.median + value.spread / 2]
        low, high = (self.y(min(max(end, self.ticks[0]), self.ticks[-1])) for end in ends)
        _add(group, "line", x1=x, x2=x, y1=low, y2=high, stroke=colour, stroke_width=1.5)

    def named_places(self, places: Sequence[str]) -> None:
        """The names below the axis, on two lines where one would be too long."""
        step = self.room / max(1, len(places))
        width = 6.4  # of a letter
        two = max(map(len, places), default=1) * width > step
        shown = [_on_two_lines(place) if two else [place] for place in places]
        longest = max((len(line) for lines in shown for line in lines), default=1)
        size = min(12.0, 12.0 * step / (width * longest))  # so that they do not touch
        for number, lines in enumerate(shown):
            x = LEFT + step * (number + 0.5)
            for i, line in enumerate(lines):
                y = self.bottom + 18 + 14 * i
                _add(self.root, "text", line, x=x, y=y, text_anchor="middle", font_size=size)

    def moments(self, end: float) -> None:
        """The time below the axis, from nought to the end."""
        self.end = max(end, 1e-9)
        ticks = _round_ticks(self.end)
        for tick in ticks if ticks[-1] <= 1.0001 * self.end else ticks[:-1]:
            x, y = self.x(tick), self.bottom
            _add(self.root, "line", x1=x, x2=x, y1=y, y2=y + 5, stroke="black")
            _add(self.root, "text", f"{tick:,g}", x=x, y=y + 18, text_anchor="middle")

    def remark(self, text: str) -> None:
        _add(
            self.root, "text", text, x=WIDTH - RIGHT, y=HEIGHT - 14, text_anchor="end",
            font_size=10, fill=_GREY,
        )  # fmt: skip

    def text(self) -> str:
        ET.indent(self.root)
        return ET.tostring(self.root, encoding="unicode") + "\n"

    def _axes(self, x_label: str, y_label: str) -> None:
        right = WIDTH - RIGHT
        for tick in self.ticks:
            y = self.y(tick)
            _add(self.root, "line", x1=LEFT, x2=right, y1=y, y2=y, stroke="#dddddd")
            _add(
                self.root, "text", f"{tick:,.12g}", x=LEFT - 8, y=y + 4, text_anchor="end"
            )  # fmt: skip
        _add(self.root, "line", x1=LEFT, x2=right, y1=self.bottom, y2=self.bottom, stroke="black")
        _add(self.root, "line", x1=LEFT, x2=LEFT, y1=TOP, y2=self.bottom, stroke="black")
        middle = (LEFT + right) / 2
        _add(self.root, "text", x_label, x=middle, y=HEIGHT - 14, text_anchor="middle")
        turned = f"rotate(-90 18 {(TOP + self.bottom) / 2})"
        _add(
            self.root, "text", y_label, x=18, y=(TOP + self.bottom) / 2,
            transform=turned, text_anchor="middle",
        )  # fmt: skip

    def _legend(self) -> None:
        if len(self.names) < 2:
            return
        x = float(LEFT)
        for number, name in enumerate(self.names):
            colour = COLOURS[number % len(COLOURS)]
            _add(self.root, "rect", x=x, y=44, width=12, height=12, fill=colour)
            _add(self.root, "text", name, x=x + 18, y=54)
            x += 38 + 6.2 * len(name)


def _on_two_lines(text: str) -> list[str]:
    """A name cut where a part of it ends, as near to its middle as can be."""
    cuts = [i + 1 for i, letter in enumerate(text) if letter in ", "]
    if not cuts:
        return [text]
    cut = min(cuts, key=lambda place: abs(place - len(text) / 2))
    return [text[:cut].strip(), text[cut:].strip()]


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: object) -> ET.Element:
    """An element; of an attribute's name ``stroke_width`` is stroke-width, and ``class_`` class."""
    shown = {
        name.rstrip("_").replace("_", "-"): f"{value:.1f}".removesuffix(".0")
        if isinstance(value, float)
        else str(value)
        for name, value in attributes.items()
    }
    element = ET.SubElement(parent, tag, shown)
    element.text = text
    return element


def _round_ticks(top: float) -> list[float]:
    """From 0 to the top or a little more, in four to eight round steps."""
    rough = max(top, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def _decades(values: Sequence[float]) -> list[float]:
    known = [v for v in values if v > 0] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]
