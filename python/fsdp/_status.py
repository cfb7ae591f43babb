"""Client.status() for people: how much of each resource is used, and a line for
each warning. The words are those of fsdpctl status."""

import collections

from ._units import age, clean, count, duration, size

_CALLS = [
    "all system calls",
    "system calls but those refused",
    "listed system calls",
]

# Each warning is shown if its counter is at least the number.
_WARNINGS = [
    ("slots_limbo", 1000, "tensors are in limbo: fsdpctl limbo shows who holds them"),
    (
        "tainted",
        1,
        "tensors were tainted, because a process died before its device had finished",
    ),
    ("jobs_failed", 1, "jobs of fsdp-worker failed: the broker's log says why"),
    (
        "dropped_peers",
        1,
        "connections were dropped, because the client broke the protocol",
    ),
]


def _broker(s):
    kind = "supervised" if s["supervised"] else "not supervised"
    yield "broker", f"pid {s['pid']}, up {age(s['uptime_ms'])}, {kind}"
    if s["sandbox_calls"] < len(_CALLS):
        files = "listed files" if s["sandbox_files"] else "all files"
        yield "may use", f"{_CALLS[s['sandbox_calls']]}, {files}"


def _memory(s):
    yield (
        "host memory",
        f"{size(s['bytes_live'])} used of {size(s['memory_max'])} "
        f"({size(s['chunk_bytes'])} in chunks)",
    )
    # The use of a single device is unknown, only that of all devices.
    for name, most in s.items():
        device, found, _ = name.partition("_memory_max")
        if found:
            chunks = size(s.get(f"{device}_chunk_bytes", 0))
            yield "device", f"{chunks} in chunks of {size(most)} on {device}"
    if s["device_bytes_live"]:
        yield "", f"{size(s['device_bytes_live'])} used on all devices"


def _contents(s):
    yield (
        "tensors",
        f"{s['slots']}, of which {s['slots_limbo']} in limbo; "
        f"{count(s['bundles'], 'bundle')}, {count(s['tickets'], 'ticket')}",
    )
    yield (
        "sessions",
        f"{s['sessions']}, of which {s['peers']} connected; "
        f"{count(s['waiters'], 'request')} waiting",
    )
    if s["comms"]:
        yield (
            "communicators",
            f"{s['comms']}, of which {s['comms_running']} running; "
            f"{count(s['groups'], 'group')}, "
            f"{count(s['gathers_in_flight'], 'gather')} in flight",
        )
    yield (
        "yours",
        f"{size(s['own_bytes'])} in host memory, "
        f"{size(s['own_device_bytes'])} on devices, {count(s['own_slots'], 'tensor')}",
    )
    yield "loop", f"longest iteration {duration(s['loop_longest_ns'])}"


def _warnings(s):
    if not s["supervised"]:
        yield "the broker is not supervised: a restart loses all tensors"
    if s["draining"]:
        yield (
            "the broker is being drained and takes no new sessions: "
            "fsdpctl drain --cancel ends that"
        )
    used, most = s["bytes_live"], s["memory_max"]
    if most and used >= most - most // 10:
        percent = used * 100 // most
        yield f"{percent}% of the host memory is used: fsdpctl du shows the users"
    for name, least, text in _WARNINGS:
        if s[name] >= least:
            yield f"{s[name]} {text}"
    yield from filter(None, s["note"].split("\n"))


def lines(status):
    """Yield lines of text for a result of Client.status()."""
    # An old broker does not have all counters.
    status = collections.defaultdict(int, status)
    for part in _broker, _memory, _contents:
        for label, text in part(status):
            yield f"{label:13} {text}"
    for text in _warnings(status):
        yield f"warning: {clean(text)}"
