"""Vehicle collisions in New York (RStream §V-B): three queries over one CSV file.

An accident is lethal if a person was killed. A week is (year, day of the year div 7).
Q1: lethal accidents per week. Q2: per contributing factor, accidents and the share of lethal ones;
a factor counts once in an accident. Q3: per borough and week, accidents and the mean of lethal.
"""

from __future__ import annotations

import csv
import datetime
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace import col
from headrace.apps import App

FACTORS = [f"CONTRIBUTING FACTOR VEHICLE {i}" for i in range(1, 6)]
HEADER = [
    "DATE", "TIME", "BOROUGH", "ZIP CODE", "NUMBER OF PERSONS INJURED", "NUMBER OF PERSONS KILLED",
    *FACTORS, "UNIQUE KEY",
]  # fmt: skip
BOROUGHS = ["BROOKLYN", "QUEENS", "MANHATTAN", "BRONX", "STATEN ISLAND", ""]
KINDS = [
    "Unspecified", "Driver Inattention/Distraction", "Fatigued/Drowsy", "Failure to Yield",
    "Other Vehicular", "Lost Consciousness", "Backing Unsafely", "Turning Improperly",
    "Pavement Slippery", "Following Too Closely", "Prescription Medication", "Alcohol Involvement",
]  # fmt: skip


def accidents(path: str) -> hr.Stream:
    types = dict.fromkeys(["DATE", "BOROUGH", *FACTORS], "string")
    date = col("DATE").to_date("MM/dd/yyyy")
    return hr.read_csv(path, schema=types).select(
        borough=col("BOROUGH"),
        year=date.year(),
        week=date.day_of_year() // 7,
        lethal=(col("NUMBER OF PERSONS KILLED") > 0).cast("int"),
        factors=hr.array(*map(col, FACTORS)).distinct(),
    )


def pipelines(path: str, form: str = "csv") -> dict[str, hr.Stream]:
    rows = accidents(path)
    return {
        "lethal_per_week": rows.group_by("year", "week").agg(lethal=hr.sum("lethal")),
        "per_factor": rows.flat_map(col("factors"), name="factor", keep="lethal")
        .filter(col("factor") != "")
        .group_by("factor")
        .agg(accidents=hr.count(), lethal_share=hr.mean("lethal")),
        "per_borough_and_week": rows.group_by("borough", "year", "week").agg(
            accidents=hr.count(), mean_lethal=hr.mean("lethal")
        ),
    }


def reference(path: str) -> dict[str, set[tuple[Any, ...]]]:
    weeks: dict[Any, int] = defaultdict(int)
    factors: dict[Any, list[int]] = defaultdict(list)
    boroughs: dict[Any, list[int]] = defaultdict(list)
    with Path(path).open(newline="") as file:
        for row in csv.DictReader(file):
            date = datetime.datetime.strptime(row["DATE"], "%m/%d/%Y").timetuple()
            week = (date.tm_year, date.tm_yday // 7)
            lethal = int(int(row["NUMBER OF PERSONS KILLED"]) > 0)
            weeks[week] += lethal
            boroughs[row["BOROUGH"], *week].append(lethal)
            for factor in {row[f] for f in FACTORS} - {""}:
                factors[factor].append(lethal)
    return {
        "lethal_per_week": {(*w, n) for w, n in weeks.items()},
        "per_factor": {(f, len(x), sum(x) / len(x)) for f, x in factors.items()},
        "per_borough_and_week": {(*k, len(x), sum(x) / len(x)) for k, x in boroughs.items()},
    }


def generate(folder: Path, records: int, seed: int, form: str) -> Path:
    """Accidents of some years, as many factors in a row as the real file has."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"collisions-{records}-{seed}.csv"
    if path.exists():
        return path
    draft = path.with_name(f".{path.name}")
    first = datetime.date(2012, 7, 1)
    with draft.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for start in range(0, records, 50_000):
            rng = np.random.default_rng([seed, start])
            count = min(50_000, records - start)
            days = rng.integers(0, 1500, count)
            minutes = rng.integers(0, 1440, count)
            borough = rng.choice(len(BOROUGHS), count, p=[0.24, 0.2, 0.2, 0.1, 0.04, 0.22])
            killed = (rng.random(count) < 0.002).astype(int) + (rng.random(count) < 0.0001)
            injured = rng.poisson(0.25, count)
            vehicles = rng.choice(6, count, p=[0.01, 0.14, 0.78, 0.05, 0.015, 0.005])
            picks = np.minimum(rng.zipf(1.6, (count, 5)) - 1, len(KINDS) - 1)
            for i in range(count):
                day = first + datetime.timedelta(days=int(days[i]))
                named = [KINDS[k] for k in picks[i][: vehicles[i]]]
                writer.writerow(
                    [
                        day.strftime("%m/%d/%Y"), f"{minutes[i] // 60}:{minutes[i] % 60:02d}",
                        BOROUGHS[borough[i]], 10_000 + int(borough[i]) * 100, injured[i], killed[i],
                        *named, *[""] * (5 - len(named)), start + i,
                    ]
                )  # fmt: skip
    return draft.rename(path)


APP = App(
    "collisions", "three queries over vehicle collisions (RStream)", ("csv",), 500_000,
    generate, pipelines, reference,
)  # fmt: skip
