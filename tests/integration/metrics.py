"""Tests fsdpctl metrics: the format and the numbers, and that docs/metrics.md
and the dashboard describe them. The arguments are the build folder and the
source folder.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import prometheus

build, source = Path(sys.argv[1]), Path(sys.argv[2])
docs = (source / "docs/metrics.md").read_text()
dashboard = json.loads((source / "docs/grafana/fsdpd.json").read_text())


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, "fsdpd has ended"
        time.sleep(0.01)


def ctl(*words, **options):
    return subprocess.run([build / "fsdpctl", *words], check=True, text=True,
                          stdout=subprocess.PIPE, timeout=60, **options).stdout


def check(what, holds):
    print("ok:" if holds else "FAILED:", what, flush=True)
    if not holds:
        sys.exit(1)


def strings(node, key):
    if isinstance(node, dict):
        for name, child in node.items():
            if name == key and isinstance(child, str):
                yield child
            else:
                yield from strings(child, key)
    elif isinstance(node, list):
        for child in node:
            yield from strings(child, key)


def check_docs(metrics):
    documented = set(re.findall(r"^\| `(fsdpd_[a-z_]+)", docs, re.M))
    shown = set(metrics)
    check(f"all metrics are documented {shown - documented or ''}",
          shown <= documented)
    check(f"all documented metrics exist {documented - shown or ''}",
          documented <= shown)
    names = shown | {name + end for name, (kind, _) in metrics.items()
                     if kind == "histogram"
                     for end in ("_bucket", "_sum", "_count")}
    queries = list(strings(dashboard, "expr"))
    alerts = re.findall(r"fsdpd_[a-z_]+", docs)
    check("the dashboard has queries", len(queries) > 10)
    used = set(re.findall(r"fsdpd_[a-z_]+", " ".join(queries))) | set(alerts)
    check(f"queries and alerts name metrics that exist {used - names or ''}",
          used <= names)


def histogram_value(metrics, name, sample, **labels):
    return next(v for s, found, v in metrics[name][1]
                if s == name + sample and found == labels)


def run(folder):
    os.environ["FSDP_SOCKET"] = str(folder / "socket")
    os.environ["HOME"] = str(folder)
    tensor = folder / "x.raw"
    tensor.write_bytes(bytes(65536))
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen(
            [build / "fsdpd", "--socket", os.environ["FSDP_SOCKET"]],
            stderr=log)
    try:
        wait_for(folder / "socket", daemon)
        ctl("put", tensor, "--name", "test/x", "--dtype", "u8", "--shape",
            "65536")
        text = ctl("metrics")
        metrics = prometheus.read(text)
        prometheus.lint(text)
        check("the format is right", True)
        check_numbers_of(metrics)
        check_docs(metrics)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


def check_numbers_of(metrics):
    used = prometheus.value(metrics, "fsdpd_memory_used_bytes", where="host")
    check("memory is that of the tensor", used == 65536)
    check("one tensor", prometheus.value(metrics, "fsdpd_tensors") == 1)
    check("the user is charged for it", prometheus.value(
        metrics, "fsdpd_user_memory_bytes", uid=str(os.getuid()),
        where="host") == 65536)
    pools = [v for _, _, v in metrics["fsdpd_pool_used_bytes"][1]]
    check("pools have it", sum(pools) == 65536)
    check("a publication was counted", prometheus.value(
        metrics, "fsdpd_published_tensors_total") == 1)
    check("it is in the histogram of its kind", histogram_value(
        metrics, "fsdpd_request_duration_seconds", "_count",
        kind="publish") == 1)
    spent = sum(v for _, _, v in metrics["fsdpd_loop_seconds_total"][1])
    uptime = prometheus.value(metrics, "fsdpd_uptime_seconds")
    check("the loop's time is no more than the uptime", 0 < spent < uptime + 1)


with tempfile.TemporaryDirectory() as name:
    run(Path(name))
