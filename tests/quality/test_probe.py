"""The probe on a tiny model: what is tried, what is measured, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.build import EngineConfig, build_engine
from engine.engine import Engine
from engine.open_model import open_model
from engine.weights import WeightSource
from protocol.errors import ConfigError
from protocol.layout import DEFAULT_BLOCK_SIZE, KvDtype, KvLayout
from protocol.wire_rule import WireCodec, WireRule
from quality.probe import ProbeProgress, probe, probe_sizes, tier_rules
from quality.reach import smallest_budget
from quality.split import SplitBench
from quality.text import probe_text, starting_tokens, text_windows
from quality.verdict import Tier, Verdict
from quality.verdicts import directory_fingerprint
from router.tokenization.tokenizer import Tokenizer
from tests.support.byte_tokenizer import EOS_ID, EOS_TEXT, byte_tokenizer, write_byte_tokenizer
from tests.support.tiny_directory import write_tiny_model
from transfer.codec.budget import check_reachable
from transfer.codec.pool_codec import PoolCodec

DEMO_LAYOUT = KvLayout("demo", 30, 3, 64, KvDtype.FLOAT32)


class _Louder:
    """Another source's weights, with values `factor` times as large."""

    def __init__(self, source: WeightSource, factor: float) -> None:
        self._source, self._factor = source, factor

    def names(self) -> set[str]:
        return self._source.names()

    def take(self, name: str) -> torch.Tensor:
        tensor = self._source.take(name)
        return tensor * self._factor if "v_proj" in name else tensor


def _engine(model: Path, factor: float = 1.0) -> Engine:
    config, source = open_model(model)
    num_blocks = SplitBench.blocks_needed(probe_sizes(config.max_position_embeddings), DEFAULT_BLOCK_SIZE)
    return build_engine(EngineConfig(num_blocks=num_blocks), config, _Louder(source, factor))


@pytest.fixture(scope="module")
def short_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose context of 384 tokens leaves 256 to cross."""
    directory = write_tiny_model(tmp_path_factory.mktemp("model") / "short", num_hidden_layers=1)
    file = directory / "config.json"
    file.write_text(file.read_text().replace('"max_position_embeddings": 2048', '"max_position_embeddings": 384'))
    return directory


def test_both_tiers_are_measured_and_eight_bits_are_closer(short_model: Path) -> None:
    """The verdict says what was tried on what; a random model finds no needle and none is held against it."""
    told: list[ProbeProgress] = []
    verdict = probe(_engine(short_model), short_model, WireCodec.CHANNEL, 1, told.append)
    four, eight = (verdict.tiers[tier].numbers for tier in (Tier.INT4, Tier.INT8))
    assert four is not None
    assert eight is not None
    assert 0 < eight.kl < four.kl
    assert four.wire_ratio < eight.wire_ratio < 0.8
    assert (four.num_needles_found_exactly, four.num_needles) == (0, 3)
    assert (verdict.num_windows, verdict.num_context, verdict.num_continued) == (1, 256, 128)
    assert verdict.model == directory_fingerprint(short_model)
    assert [step.num_done for step in told] == [0, 1, 2, 3, 4]
    assert {step.num_steps for step in told} == {4}
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_a_codec_with_one_tier_is_tried_in_it(short_model: Path) -> None:
    """Four bits alone, without sinks or importance."""
    verdict = probe(_engine(short_model), short_model, WireCodec.UNIFORM_INT4, 1)
    assert set(verdict.tiers) == {Tier.INT4}


def test_kv_that_cannot_be_written_is_a_verdict(short_model: Path) -> None:
    """Values beyond float16 fail the codec and not the probe."""
    verdict = probe(_engine(short_model, factor=1e6), short_model, WireCodec.CHANNEL, 1)
    assert not verdict.passes(Tier.INT4)
    assert not verdict.passes(Tier.INT8)
    assert "values beyond 65504" in verdict.faults(Tier.INT4)
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_what_each_tier_is_tried_by() -> None:
    """INT4 at 0.3, INT8 at the smallest budget that has it, both with window importance and four sinks."""
    rules = tier_rules(WireCodec.CHANNEL, DEMO_LAYOUT)
    assert rules[Tier.INT4] == WireRule(WireCodec.CHANNEL, 0.3)
    assert 0.53 < rules[Tier.INT8].budget < 0.56
    assert not rules[Tier.INT8].allows_int4
    assert tier_rules(WireCodec.FP8, DEMO_LAYOUT) == {Tier.INT8: WireRule(WireCodec.FP8, num_sinks=0)}
    with pytest.raises(ConfigError, match="nothing to probe"):
        tier_rules(WireCodec.NATIVE, DEMO_LAYOUT)


def test_a_budget_out_of_reach_is_raised() -> None:
    """Heads of twelve values cannot cross at 0.3: they are tried at the least they can."""
    layout = KvLayout("tiny", 3, 2, 12, KvDtype.FLOAT32)
    assert tier_rules(WireCodec.CHANNEL, layout)[Tier.INT4].budget > 0.33


@pytest.mark.parametrize("codec", [WireCodec.CHANNEL, WireCodec.SPECTRUM])
@pytest.mark.parametrize("slot_bytes", [1 << 20, 2 << 20])
@pytest.mark.parametrize("allows_int4", [True, False])
def test_the_smallest_budget_is_what_a_worker_takes(codec: WireCodec, slot_bytes: int, allows_int4: bool) -> None:
    """It is accepted as workers check it, and the next smaller one is not."""
    pool_codec = PoolCodec(torch.empty(0), DEMO_LAYOUT)
    least = smallest_budget(DEMO_LAYOUT, WireRule(codec, allows_int4=allows_int4), slot_bytes)

    def check(budget: float) -> None:
        rule = WireRule(codec, budget, allows_int4=allows_int4)
        check_reachable(DEMO_LAYOUT, rule, pool_codec.chunk_tokens(DEMO_LAYOUT.dtype, slot_bytes, rule))

    check(least)
    with pytest.raises(ConfigError, match="cannot be reached"):
        check(least - 0.0002)


def test_sizes_follow_the_models_context() -> None:
    """As much as 1,024 tokens, and no less than 128."""
    assert probe_sizes(8192).num_context == 1024
    assert probe_sizes(600).num_context == 472
    assert probe_sizes(256).num_context == 128
    with pytest.raises(ConfigError, match="255 tokens is too short"):
        probe_sizes(255)


def test_the_text_is_long_enough_and_windows_do_not_overlap() -> None:
    """Three windows even of a tokenizer that needs five characters a token; more than there are is refused."""
    assert len(probe_text()) > 3 * 1153 * 4.5
    first, second = text_windows(byte_tokenizer(), 2, 100)
    assert byte_tokenizer().decode([*first, *second]) == probe_text()[:200]
    with pytest.raises(ConfigError, match="windows of 1153"):
        text_windows(byte_tokenizer(), 100, 1153)


def test_windows_begin_as_the_models_texts_do(tmp_path: Path) -> None:
    """A tokenizer's start mark is in front of every window, and counts."""
    tokenizer = _with_start_mark(tmp_path)
    assert starting_tokens(tokenizer) == (256,)
    assert [window[0] for window in text_windows(tokenizer, 2, 50)] == [256, 256]
    assert {len(window) for window in text_windows(tokenizer, 2, 50)} == {50}


def _with_start_mark(directory: Path) -> Tokenizer:
    write_byte_tokenizer(directory)
    file = directory / "tokenizer.json"
    fields = json.loads(file.read_text())
    mark, text = {"SpecialToken": {"id": EOS_TEXT, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    fields["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [mark, text],
        "pair": [mark, text],
        "special_tokens": {EOS_TEXT: {"id": EOS_TEXT, "ids": [EOS_ID], "tokens": [EOS_TEXT]}},
    }
    file.write_text(json.dumps(fields))
    return Tokenizer.from_directory(directory)
