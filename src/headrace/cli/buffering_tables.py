"""The experiments on buffering policies as tables."""

from __future__ import annotations

from rich.table import Table

from headrace.bench.samples import Row

LEGEND = (
    "throughput: medians in thousand records a second, and the distance between quartiles; "
    "latency: of every record, from when it was due; others: the share of the cores that other "
    "processes had"
)


def table(rows: list[Row]) -> Table:
    """The rows of one experiment, a policy each."""
    shown = Table(show_edge=False, pad_edge=False)
    latency = "p50_ms" in rows[0]
    headings = ["policy", "buffers"] if latency else ["policy"]
    headings += [
        "records",
        *(["p50", "p99", "max ms"] if latency else ["K/s", "spread", "K/cpu s"]),
    ]
    headings.append("others")
    for heading in headings:
        is_left = heading == "policy"
        shown.add_column(heading, justify="left" if is_left else "right", no_wrap=True)
    for row in rows:
        cells = [row["policy"], str(row["buffers"])] if latency else [row["policy"]]
        cells.append(f"{row['records']:,}")
        if latency:
            cells += [f"{row[key]:,.1f}" for key in ("p50_ms", "p99_ms", "max_ms")]
        else:
            rates = ("records_per_s", "records_per_s_spread", "records_per_cpu_s")
            cells += [f"{row[key] / 1000:,.1f}" for key in rates]
        shown.add_row(*cells, f"{100 * row['others']:.0f} %")
    return shown
