"""Verdicts: what passes, how they are kept, and which stored ones are used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.wire_rule import WireCodec
from quality.text import text_digest
from quality.verdict import Tier, TierNumbers, TierVerdict, Verdict
from quality.verdicts import directory_fingerprint, store_verdict, stored_verdict, verdict_path
from tests.support.tiny_directory import write_tiny_model

GOOD = TierNumbers(0.3, 0.003, 0.975, 0.0, 3, 3, 3)


def _verdict(numbers: TierNumbers = GOOD, num_windows: int = 2) -> Verdict:
    tiers = {Tier.INT4: TierVerdict(numbers), Tier.INT8: TierVerdict(None, "cannot be written")}
    return Verdict("f" * 32, WireCodec.CHANNEL, text_digest(), num_windows, 1024, 128, "float32", tiers)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_each_number_alone_can_fail_a_tier() -> None:
    """The fault names the number and its threshold; what is at the threshold passes."""
    assert TierVerdict(GOOD).passes
    assert TierVerdict(replace(GOOD, kl=0.015, top1=0.93, ppl_change_percent=1.0)).passes
    for changed, word in (
        ({"kl": 0.0195}, "KL 0.0195 above 0.015"),
        ({"kl": float("nan")}, "KL nan"),
        ({"top1": 0.92}, "top-1 0.920 below 0.93"),
        ({"ppl_change_percent": 2.7}, r"perplexity +2.7% above +1%"),
        ({"num_needles_found": 2}, "2 of 3 needles found"),
    ):
        [fault] = TierVerdict(replace(GOOD, **changed)).faults
        assert word in fault


def test_less_perplexity_and_needles_that_exact_kv_loses_are_no_faults() -> None:
    """A codec answers for what it changes for the worse."""
    assert TierVerdict(replace(GOOD, ppl_change_percent=-5.0)).passes
    assert TierVerdict(replace(GOOD, num_needles_found=0, num_needles_found_exactly=0)).passes


def test_a_refusal_fails_with_its_reason() -> None:
    """As does a tier that the codec does not have."""
    verdict = _verdict()
    assert verdict.faults(Tier.INT8) == "cannot be written"
    only_int8 = replace(verdict, tiers={Tier.INT8: TierVerdict(GOOD)})
    assert not only_int8.passes(Tier.INT4)
    assert "no int4" in only_int8.faults(Tier.INT4)


def test_json_both_ways() -> None:
    """A verdict comes back equal; readers find passes, faults and thresholds in it."""
    verdict = _verdict()
    assert Verdict.from_json(verdict.to_json()) == verdict
    fields = json.loads(verdict.to_json())
    assert fields["tiers"]["int4"]["passes"] is True
    assert fields["tiers"]["int8"]["faults"] == ["cannot be written"]
    assert set(fields["thresholds"]) == {"kl", "top1", "ppl_change_percent"}


def test_a_stored_verdict_is_found_again(cache: Path) -> None:
    """By model and codec, for as many windows as it has, and nothing lies beside it."""
    verdict = _verdict()
    path = store_verdict(verdict)
    assert list(cache.rglob("*.json*")) == [path]
    assert stored_verdict("f" * 32, WireCodec.CHANNEL, 2) == verdict
    assert stored_verdict("f" * 32, WireCodec.CHANNEL, 1) == verdict
    assert stored_verdict("f" * 32, WireCodec.CHANNEL, 3) is None
    assert stored_verdict("f" * 32, WireCodec.SPECTRUM, 2) is None
    assert stored_verdict("0" * 32, WireCodec.CHANNEL, 2) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"tiers": {"int4": 3}}', "\x00"])
def test_a_broken_file_is_as_none(content: str) -> None:
    """And the next verdict takes its place."""
    path = store_verdict(_verdict())
    path.write_text(content)
    assert stored_verdict("f" * 32, WireCodec.CHANNEL, 2) is None
    store_verdict(_verdict())
    assert stored_verdict("f" * 32, WireCodec.CHANNEL, 2) is not None


@pytest.mark.parametrize("changed", [{"version": 0}, {"text": "other"}, {"model": "0" * 32}, {"codec": "spectrum"}])
def test_an_outdated_file_is_as_none(changed: dict[str, object]) -> None:
    """Whatever of its identity is not today's."""
    path = store_verdict(_verdict())
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    assert stored_verdict("f" * 32, WireCodec.CHANNEL, 2) is None


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    """The error says which variable helps."""
    cache.write_text("a file")
    with pytest.raises(ConfigError, match="KVFERRY_CACHE"):
        store_verdict(_verdict())


def test_a_directory_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    """Equal copies are one model; other weights, another tokenizer or another configuration are another."""
    first, same, other = (write_tiny_model(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    known = directory_fingerprint(first)
    assert len(known) == 32
    assert directory_fingerprint(same) == known
    assert directory_fingerprint(other) != known
    for name in ("config.json", "tokenizer.json"):
        before = (same / name).read_text()
        (same / name).write_text(before + " ")
        assert directory_fingerprint(same) != known
        (same / name).write_text(before)
    assert verdict_path(known, WireCodec.CHANNEL).name.startswith(known)
