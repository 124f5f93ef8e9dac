"""Plots as SVG: lines over named places, and bars in groups, with the spread of each value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 84, 62
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Told apart by most people who do not see all colours (Okabe and Ito)."""


@dataclass(frozen=True)
class Value:
    """A median, and how far it is to the quartiles at both sides together; None if unknown."""

    median: float | None
    spread: float = 0.0


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
        drawing = _Drawing(self)
        step = drawing.step
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
        drawing = _Drawing(self)
        for number, (name, values) in enumerate(self.series.items()):
            group = drawing.group(name, number)
            known = [(i, value) for i, value in enumerate(values) if value.median is not None]
            points = [(LEFT + drawing.step * (i + 0.5), value) for i, value in known]
            path = " ".join(f"{x:.1f},{drawing.y(v.median or 0):.1f}" for x, v in points)
            _add(group, "polyline", points=path, fill="none", stroke_width=2)
            for x, value in points:
                _add(group, "circle", cx=x, cy=drawing.y(value.median or 0), r=4)
                drawing.whisker(group, x, value, COLOURS[number % len(COLOURS)])
        return drawing.text()


class _Drawing:
    """Axes, labels and a legend, and where values are."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self.bottom = HEIGHT - BOTTOM
        self.step = (WIDTH - LEFT - RIGHT) / max(1, len(plot.places))
        tops = [
            value.median + (0 if plot.log else value.spread / 2)
            for values in plot.series.values()
            for value in values
            if value.median is not None
        ]
        self.ticks = _decades(tops) if plot.log else _round_ticks(max(tops, default=1.0))
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
        _add(self.root, "title", plot.title)
        _add(self.root, "rect", width=WIDTH, height=HEIGHT, fill="white")
        _add(
            self.root, "text", plot.title, x=LEFT, y=24,
            font_size=15, font_weight="bold",
        )  # fmt: skip
        self._axes()
        self._legend()

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.plot.log:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return self.bottom - share * (self.bottom - TOP)

    def group(self, name: str, number: int) -> ET.Element:
        colour = COLOURS[number % len(COLOURS)]
        group = _add(self.root, "g", fill=colour, stroke=colour, class_="series")
        _add(group, "title", name)
        return group

    def whisker(self, group: ET.Element, x: float, value: Value, colour: str) -> None:
        if value.median is None or value.spread <= 0:
            return
        ends = [value.median - value.spread / 2, value.median + value.spread / 2]
        low, high = (self.y(min(max(end, self.ticks[0]), self.ticks[-1])) for end in ends)
        _add(group, "line", x1=x, x2=x, y1=low, y2=high, stroke=colour, stroke_width=1.5)

    def text(self) -> str:
        ET.indent(self.root)
        return ET.tostring(self.root, encoding="unicode") + "\n"

    def _axes(self) -> None:
        right = WIDTH - RIGHT
        for tick in self.ticks:
            y = self.y(tick)
            _add(self.root, "line", x1=LEFT, x2=right, y1=y, y2=y, stroke="#dddddd")
            _add(
                self.root, "text", f"{tick:,g}", x=LEFT - 8, y=y + 4, text_anchor="end"
            )  # fmt: skip
        _add(self.root, "line", x1=LEFT, x2=right, y1=self.bottom, y2=self.bottom, stroke="black")
        _add(self.root, "line", x1=LEFT, x2=LEFT, y1=TOP, y2=self.bottom, stroke="black")
        longest = max(map(len, self.plot.places), default=1)
        size = min(12.0, self.step / (0.58 * longest))  # so that they do not touch
        for number, place in enumerate(self.plot.places):
            x, y = LEFT + self.step * (number + 0.5), self.bottom + 18
            _add(self.root, "text", place, x=x, y=y, text_anchor="middle", font_size=size)
        middle = (LEFT + right) / 2
        _add(
            self.root, "text", self.plot.x_label, x=middle, y=HEIGHT - 14,
            text_anchor="middle",
        )  # fmt: skip
        turned = f"rotate(-90 18 {(TOP + self.bottom) / 2})"
        _add(
            self.root, "text", self.plot.y_label, x=18, y=(TOP + self.bottom) / 2,
            transform=turned, text_anchor="middle",
        )  # fmt: skip

    def _legend(self) -> None:
        x = float(LEFT)
        for number, name in enumerate(self.plot.series):
            colour = COLOURS[number % len(COLOURS)]
            _add(self.root, "rect", x=x, y=44, width=12, height=12, fill=colour)
            _add(self.root, "text", name, x=x + 18, y=54)
            x += 40 + 6.6 * len(name)


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
