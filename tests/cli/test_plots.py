"""Plots as SVG."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from headrace.bench.plots import Plot, Track, Value
from tests.cli.svg import SVG, series_of


def test_a_plot_shows_its_title_labels_places_and_the_values_it_knows():
    series = {"a": [Value(1.0, 0.5), Value(None)], "b": [Value(20.0), Value(3.0)]}
    for text in (
        Plot("A < B", "size", "ms", ["small", "large"], series).bars(),
        Plot("A < B", "size", "ms", ["small", "large"], series, log=True).lines(),
    ):
        root = ET.fromstring(text)
        shown = [element.text for element in root.iter(f"{SVG}text")]
        assert {"A < B", "size", "ms", "small", "large", "a", "b", "10", "20"} - set(shown) <= {
            "20"
        }
        assert series_of(text) == ["a", "b"]


def test_a_track_has_a_line_of_at_most_so_many_points():
    points = [(i / 100, float(i % 7)) for i in range(1001)]
    text = Track("A & B", "time", "ms", {"a": points, "b": points[:3]}).lines(most=100)
    lines = list(ET.fromstring(text).iter(f"{SVG}polyline"))
    assert [len(line.get("points", "").split()) for line in lines] == [91, 3]
