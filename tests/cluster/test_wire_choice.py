"""What a server makes of the probe's verdicts: which codec, which budget, INT4 or not, and what it says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.settings import ServeSettings
from cluster.wire_choice import WireChoice, choose, codec_in_question
from cluster.wire_decision import wire_lines
from protocol.wire_rule import WireCodec, WireRule
from quality.verdict import Tier, TierNumbers, TierVerdict, Verdict

GOOD = TierVerdict(TierNumbers(0.3, 0.003, 0.975, 0.0, 3, 3, 3))
BAD = TierVerdict(TierNumbers(0.3, 0.0195, 0.92, 0.4, 3, 3, 3))
INT4_LEAST, INT8_LEAST = 0.285, 0.535


def _settings(**changed: Any) -> ServeSettings:
    return ServeSettings(**{"model": "m", "kv_wire_budget": 0.3, **changed})


def _verdicts(**by_codec: tuple[TierVerdict | None, TierVerdict | None]) -> Callable[[WireCodec], Verdict]:
    """Verdicts on INT4 and INT8 by the codec's name; asking for another codec's is an error."""

    def verdict_of(codec: WireCodec) -> Verdict:
        pairs = zip((Tier.INT4, Tier.INT8), by_codec[codec.value.replace("-", "_")], strict=True)
        tiers = {tier: found for tier, found in pairs if found is not None}
        return Verdict("f" * 32, codec, "text", 2, 1024, 128, "float32", tiers)

    return verdict_of


def _least(rule: WireRule) -> float:
    return INT4_LEAST if rule.allows_int4 else INT8_LEAST


def _choose(settings: ServeSettings, **by_codec: tuple[TierVerdict | None, TierVerdict | None]) -> WireChoice:
    return choose(settings, _verdicts(**by_codec), _least)


@pytest.mark.parametrize(
    ("changed", "codec"),
    [
        ({}, WireCodec.CHANNEL),
        ({"kv_wire_codec": "spectrum"}, WireCodec.SPECTRUM),
        ({"kv_wire_codec": "uniform-int4", "kv_wire_budget": 1.0}, WireCodec.UNIFORM_INT4),
        ({"kv_wire_budget": 1.0, "kv_wire_min_budget": 0.3}, WireCodec.CHANNEL),
        ({"kv_wire_budget": 1.0}, None),
        ({"kv_wire_budget": 1.0, "kv_wire_min_budget": 1.0}, None),
        ({"kv_wire_codec": "fp8", "kv_wire_budget": 1.0}, None),
        ({"kv_wire_codec": "uniform-int8"}, None),
        ({"kv_wire_int4": "on"}, None),
        ({"kv_wire_int4": "off"}, None),
        ({"prefill": 0}, None),
    ],
)
def test_the_probe_is_asked_only_where_it_decides(changed: dict[str, Any], codec: WireCodec | None) -> None:
    """Where fewer than 8 bits could cross, by the server's rule or a request's, and nobody has decided yet."""
    settings = _settings(**changed)
    assert codec_in_question(settings) is codec
    if codec is None:
        assert _choose(settings) == WireChoice(settings)


def test_a_pass_allows_int4_and_changes_nothing_else() -> None:
    """The rule is the asked one; another codec's verdict is not asked for."""
    choice = _choose(_settings(kv_wire_codec="spectrum", kv_wire_budget=0.28), spectrum=(GOOD, GOOD))
    assert choice.change == ""
    assert choice.settings.wire_rule() == WireRule(WireCodec.SPECTRUM, 0.28, allows_int4=True)
    assert wire_lines(choice) == ("KV crosses by spectrum at 0.28 of 16 bits, INT4 allowed",)


def test_a_failure_falls_back_to_channel() -> None:
    """The sentence has the numbers that failed and only those, and what happens instead."""
    choice = _choose(_settings(kv_wire_codec="spectrum"), spectrum=(BAD, GOOD), channel=(GOOD, GOOD))
    assert choice.settings.wire_rule() == WireRule(WireCodec.CHANNEL, 0.3, allows_int4=True)
    assert choice.change == (
        "INT4 does not pass the probe with spectrum (KL 0.0195 above 0.015, top-1 0.920 below 0.93): "
        "KV crosses by channel, at 0.3"
    )
    assert wire_lines(choice)[-1] == choice.change


def test_a_budget_that_the_next_codec_cannot_reach_is_raised() -> None:
    """And the sentence has both."""
    choice = _choose(
        _settings(kv_wire_codec="spectrum", kv_wire_budget=0.27), spectrum=(BAD, GOOD), channel=(GOOD, GOOD)
    )
    assert choice.settings.wire_rule() == WireRule(WireCodec.CHANNEL, INT4_LEAST, allows_int4=True)
    assert choice.change.endswith("KV crosses by channel, at 0.285 in place of 0.27")


def test_without_int4_the_asked_codec_keeps_to_eight_bits() -> None:
    """At the smallest budget that it reaches, or the asked one where that is more; both failures are named."""
    for budget, given in ((0.3, INT8_LEAST), (0.7, 0.7)):
        settings = _settings(kv_wire_codec="spectrum", kv_wire_budget=budget)
        choice = _choose(settings, spectrum=(BAD, GOOD), channel=(BAD, GOOD))
        assert choice.settings.wire_rule() == WireRule(WireCodec.SPECTRUM, given, allows_int4=False)
        assert "with spectrum (KL" in choice.change
        assert "nor with channel (KL" in choice.change
        assert f"KV crosses by spectrum with INT8 and more, at {given}" in choice.change


def test_a_codec_of_four_bits_has_no_eight() -> None:
    """What replaces it is channel, at what the probe tried."""
    settings = _settings(kv_wire_codec="uniform-int4", kv_wire_budget=1.0)
    choice = _choose(settings, uniform_int4=(BAD, None), channel=(GOOD, GOOD))
    assert choice.settings.wire_rule() == WireRule(WireCodec.CHANNEL, 0.3, allows_int4=True)
    choice = _choose(settings, uniform_int4=(BAD, None), channel=(BAD, GOOD))
    assert choice.settings.wire_rule() == WireRule(WireCodec.CHANNEL, INT8_LEAST, allows_int4=False)


def test_where_nothing_passes_kv_crosses_lossless() -> None:
    """For requests too, and the reasons of both tiers are said."""
    refused = TierVerdict(None, "values beyond 65504")
    choice = _choose(_settings(kv_wire_min_budget=0.29), channel=(refused, refused))
    assert choice.settings.wire_rule().is_lossless
    assert choice.settings.kv_wire_min_budget == 0
    assert choice.change.count("values beyond 65504") == 2
    assert wire_lines(choice) == (choice.change,)


def test_requests_of_a_lossless_server_follow_the_verdict() -> None:
    """INT4 is theirs where it passes; else the smallest budget they may ask for is raised."""
    settings = _settings(kv_wire_budget=1.0, kv_wire_min_budget=0.3)
    allowed = _choose(settings, channel=(GOOD, GOOD))
    assert allowed.settings.wire_offer().rule_for(0.3) == WireRule(WireCodec.CHANNEL, 0.3, allows_int4=True)
    assert "requests may ask for 0.3" in wire_lines(allowed)[0]
    raised = _choose(settings, channel=(BAD, GOOD))
    assert raised.settings.wire_rule().is_lossless
    assert raised.settings.wire_offer().least_budget == INT8_LEAST
    assert not raised.settings.wire_offer().rule_for(0.6).allows_int4
    assert raised.change.endswith("requests get channel with INT8 and more, at 0.535 in place of 0.3")


def test_the_smallest_budget_of_requests_is_raised_with_the_servers() -> None:
    """It stays at or below the server's own."""
    choice = _choose(_settings(kv_wire_min_budget=0.29), channel=(BAD, GOOD))
    assert (choice.settings.kv_wire_budget, choice.settings.kv_wire_min_budget) == (INT8_LEAST, INT8_LEAST)
