"""What a plot shows."""

from __future__ import annotations

from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def series_of(text: str) -> list[str]:
    groups = [g for g in ET.fromstring(text).iter(f"{SVG}g") if g.get("class") == "series"]
    return [str(group.findtext(f"{SVG}title")) for group in groups]
