"""The benchmark of the prefix cache's rules of eviction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.load.prefix_mix import PrefixMix, mixed_prompts
from benchmarks.prefix_cache import Prompt, main, replay
from engine.prefix_cache.policy import PrefixCachePolicy


def test_a_trace_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Full blocks are counted, with the last token always computed: here 2 of the 3 that the second prompt might find."""
    lines = [
        {"timestamp": 0, "input_length": 1600, "output_length": 1, "hash_ids": [0, 1, 2, 3]},
        {"timestamp": 1, "input_length": 1600, "output_length": 1, "hash_ids": [0, 1, 4, 5]},
        {"timestamp": 2, "input_length": 2048, "output_length": 1, "hash_ids": [6, 7, 8, 9]},
    ]
    trace = tmp_path / "small.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    assert main(["--trace", str(trace), "--sizes", "4", "20", "--max-requests", "3"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["workload"] == "small"
    assert result["unbounded_hit_rate"] == round(2 / 9, 4)
    assert set(result["hit_rates"]) == {"lru_4", "arc_4", "lru_20", "arc_20"}
    assert set(result["hit_rates"].values()) == {round(2 / 9, 4)}


def test_the_mix_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a trace, and with a bigger cache finding no less."""
    assert main(["--max-requests", "300", "--sizes", "200", "2000"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["num_prompts"] == 300
    for policy in PrefixCachePolicy:
        assert 0 < result["hit_rates"][f"{policy}_200"] <= result["hit_rates"][f"{policy}_2000"]


def test_a_prompt_longer_than_the_pool_is_left_out() -> None:
    """And counted."""
    prompts = [Prompt([bytes([number]) for number in range(8)], 8 * 512 + 1), Prompt([b"a"], 700)]
    result = replay(prompts, 8, PrefixCachePolicy.LRU)
    assert (result.num_too_long, result.hit_rate) == (1, 0.0)


def test_the_mix_is_the_same_for_a_seed() -> None:
    """Another seed gives other prompts; no prompt is empty."""
    mix = PrefixMix(num_requests=50)
    first = [*mixed_prompts(mix, 1)]
    assert first == [*mixed_prompts(mix, 1)] != [*mixed_prompts(mix, 2)]
    assert len(first) == 50
    assert all(first)
