"""Reads the text format of Prometheus for tests. It refuses everything that the
format does not allow.
"""
import re
import shutil
import subprocess
from pathlib import Path

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*$")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def labels_of(text):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"labels {text!r}"
        assert match[1] not in labels, f"label {match[1]} comes twice"
        labels[match[1]] = match[2]
        at = match.end()
    return labels


def family_of(name, types):
    for end in "_bucket", "_sum", "_count":
        base = name.removesuffix(end)
        if name.endswith(end) and types.get(base) == "histogram":
            return base
    return name


def check_histogram(name, samples):
    """Check that the buckets of one set of labels increase to the count."""
    series = {}
    for sample, labels, value in samples:
        le = labels.get("le")
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        series.setdefault(key, []).append((sample, le, value))
    for key, rows in series.items():
        buckets = [(float(le), v) for s, le, v in rows if s.endswith("_bucket")]
        counts = [v for s, _, v in rows if s.endswith("_count")]
        sums = [v for s, _, v in rows if s.endswith("_sum")]
        assert len(counts) == len(sums) == 1, f"{name}{key}"
        assert buckets == sorted(buckets), f"{name}{key}: order of buckets"
        assert len({le for le, _ in buckets}) == len(buckets)
        assert buckets[-1] == (float("inf"), counts[0]), f"{name}{key}: the last"
        values = [v for _, v in buckets]
        assert values == sorted(values), f"{name}{key} is not cumulative"


def check_name(name, kind):
    assert name.startswith("fsdpd_"), name
    assert name.endswith("_total") == (kind == "counter"), name
    assert not re.search(r"_(ms|us|ns|kb|mb|mib|milliseconds)(_|$)", name), name


def read(text):
    """Return {metric: (type, [(sample, labels, value)])}."""
    assert text.endswith("\n")
    types, helps, found, seen, last = {}, {}, {}, set(), None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            assert NAME.match(name) and name not in helps and words
            helps[name] = words
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("gauge", "counter", "histogram"), line
            assert name in helps and name not in types, line
            types[name], found[name], last = kind, [], name
            check_name(name, kind)
        else:
            match = SAMPLE.match(line)
            assert match, line
            labels, value = labels_of(match[2] or ""), float(match[3])
            assert family_of(match[1], types) == last, f"{line}: not together"
            assert (key := (match[1], tuple(sorted(labels.items())))) not in seen
            seen.add(key)
            assert value >= 0, line
            found[last].append((match[1], labels, value))
    for name, kind in types.items():
        if kind == "histogram":
            check_histogram(name, found[name])
    return {name: (types[name], found[name]) for name in types}


def find_promtool():
    made = Path(__file__).parents[2] / "build/prometheus/usr/bin/promtool"
    return made if made.exists() else shutil.which("promtool")


def lint(text):
    """Check the text with promtool, which must find nothing."""
    promtool = find_promtool()
    if not promtool:
        print("skipped: there is no promtool; run scripts/promtool")
        return
    done = subprocess.run([promtool, "check", "metrics"], input=text,
                          text=True, capture_output=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and not said.strip(), said


def value(metrics, name, **labels):
    for _, found, number in metrics[name][1]:
        if found == labels:
            return number
    raise AssertionError(f"{name} has no {labels}")
