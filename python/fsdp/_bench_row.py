"""The format of rows that all benchmarks share."""

import statistics


def summary(name, unit, ours, floors):
    """Return the row of times that were measured in turns. `ratio` is the
    median of the ratios of all turns, `best` is the ratio of the least times."""
    ordered, least = sorted(ours), min(floors)
    return {
        "name": name,
        "median": statistics.median(ours),
        "p99": ordered[len(ours) * 99 // 100],
        "unit": unit,
        "n": len(ours),
        "floor": statistics.median(floors),
        "best": ordered[0] / least if least else None,
        "ratio": statistics.median(o / f for o, f in zip(ours, floors) if f),
        "least": ordered[0],
    }
