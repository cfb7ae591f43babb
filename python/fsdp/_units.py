"""Numbers and texts for people, in the words of fsdpctl."""

_SIZES = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]

# Ages below so many milliseconds are shown in this unit.
_AGES = [
    (1000, 1, "ms"),
    (120 * 1000, 1000, "s"),
    (120 * 60_000, 60_000, "min"),
    (48 * 3_600_000, 3_600_000, "h"),
]


def size(n):
    """Return bytes in powers of 1024."""
    if n < 1024:
        return f"{n} B"
    value = n / 1024
    for unit in _SIZES:
        # 1023.95 and more would be printed as 1024.0.
        if value < 1023.95 or unit == _SIZES[-1]:
            break
        value /= 1024
    return f"{value:.1f} {unit}"


def count(n, noun):
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def age(ms):
    for below, unit, name in _AGES:
        if ms < below:
            return f"{ms // unit} {name}"
    return f"{ms // 86_400_000} d"


def duration(ns):
    for below, unit, digits, name in (1e6, 1e3, 1, "us"), (1e9, 1e6, 2, "ms"):
        if ns < below:
            return f"{ns / unit:.{digits}f} {name}"
    return f"{ns / 1e9:.2f} s"


def clean(text):
    """Return the text without characters that could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
