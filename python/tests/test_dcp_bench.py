"""Tests `python3 -m fsdp bench --dcp`, which compares saves with one copy and
with torch's writers.
"""

import json

import torch.distributed

import fsdp._bench_dcp
from fsdp.__main__ import main


def test_bench_compares_with_memcpy_and_torchs_writers(broker, c, capsys, monkeypatch):
    rows = {"large": (2, 3 << 20, "memcpy", 1e9), "small": (20, 4096, "file", 0)}
    monkeypatch.setattr(fsdp._bench_dcp, "_ROWS", rows)
    code = main(["--socket", broker.path, "bench", "--dcp", "--quick", "--json"])
    large, small = map(json.loads, capsys.readouterr().out.splitlines())
    assert code == 0
    for row in large, small:
        assert row["unit"] == "ms" and row["n"] == 5
        assert 0 < row["least"] <= row["median"] <= row["p99"]
        assert row["best"] > 0 and row["floor"] > 0 and row["cpu"] > 0
        assert list(row["beside"]) == ["first", "memcpy", "fsdp", "file", "async"]
    assert large["floor"] == large["beside"]["memcpy"]
    assert small["floor"] == small["beside"]["file"]
    # The third save uses the memory of the first. 6 MiB of new pages would be
    # 1536 faults.
    assert large["faults"] < 300
    assert c.names() == [] and not torch.distributed.is_initialized()
    assert main(["bench", "--dcp", "--quick"]) == 0
    head, large, small = capsys.readouterr().out.splitlines()
    assert "budget" in head and " met; " in large and " NOT MET; " in small
    assert "; async " in large
