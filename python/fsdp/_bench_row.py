"""The format of rows that all benchmarks share."""

import os
import statistics
import time


def reading(unit, *pids):
    """Return the time, and the CPU time and page faults of these processes or of
    this one. Times are in units of so many ns."""
    pids = pids or (os.getpid(),)
    # the formula of the C library's clock_getcpuclockid()
    cpu = sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in pids)
    return time.perf_counter_ns() / unit, cpu / unit, sum(map(_faults, pids))


def _faults(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[7])


def costs(name, unit, ours, floors):
    """Return the row of turns, which are differences of readings."""
    times, *spent = zip(*ours)
    floor_times, *floor_spent = zip(*floors)
    cpu, faults = map(statistics.median, spent)
    floor_cpu, floor_faults = map(statistics.median, floor_spent)
    return {
        **summary(name, unit, times, floor_times),
        "cpu": cpu,
        "floor_cpu": floor_cpu,
        "faults": faults,
        "floor_faults": floor_faults,
    }


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
