"""`python3 -m fsdp bench --loader` compares both loaders in one run."""

import json

import pytest
import torch

import fsdp._bench_loader
from fsdp.__main__ import main

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_bench_compares_with_the_better_strategy_of_torch(broker, capsys):
    strategy = torch.multiprocessing.get_sharing_strategy()
    main(["--socket", broker.path, "bench", "--loader", "--quick", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["name"]: 1 / row["budget"] for row in rows} == {
        "loader_64KiB": 8,
        "loader_1MiB": 10,
        "loader_16MiB": 10,
        "loader_114_tensors": 20,
    }
    for row in rows:
        assert row["unit"] == "us" and row["n"] == 3
        assert 0 < row["least"] <= row["median"] <= row["p99"]
        assert row["ratio"] > 0 and row["best"] > 0 and row["floor"] > 0
        assert row["cpu"] > 0 and row["floor_cpu"] > 0
        assert row["strategy"] in torch.multiprocessing.get_all_sharing_strategies()
    assert rows[2]["faults"] < rows[2]["floor_faults"]
    assert torch.multiprocessing.get_sharing_strategy() == strategy


def test_a_strategy_that_misses_torchs_limit_is_left_out(broker, capsys, monkeypatch):
    measure = fsdp._bench_loader._Side.measure

    def measure_slowly(side):
        if side.strategy == "file_system" and side.epochs:
            raise RuntimeError("Shared memory manager connection has timed out")
        return measure(side)

    monkeypatch.setattr(fsdp._bench_loader._Side, "measure", measure_slowly)
    monkeypatch.setattr(fsdp._bench_loader, "_ROWS", {"row": (1, 16, 4, 1)})
    main(["--socket", broker.path, "bench", "--loader", "--quick", "--json"])
    assert json.loads(capsys.readouterr().out)["strategy"] == "file_descriptor"


def test_bench_reports_whether_a_budget_is_met(broker, capsys, monkeypatch):
    size = (1, 16, 4)
    rows = {"easy": (*size, 1e9), "hard": (*size, 0)}
    monkeypatch.setattr(fsdp._bench_loader, "_ROWS", rows)
    main(["bench", "--loader", "--quick"])
    head, easy, hard = capsys.readouterr().out.splitlines()
    assert "budget" in head and " met; " in easy and " NOT MET; " in hard
