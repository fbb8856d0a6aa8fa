"""A server's rule for KV on the wire, and what of it a request may choose for itself."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given

from protocol.errors import BadRequest, ConfigError
from protocol.request import GenerateRequest, StopRule
from protocol.wire_rule import LOSSLESS, Importance, WireCodec, WireOffer, WireRule
from tests.protocol.test_wire import RULES

SPECTRUM = WireRule(WireCodec.SPECTRUM, 0.4, Importance.POSITIONAL, num_sinks=8, allows_int4=False)


@given(RULES)
def test_rules_and_offers_cross_as_json(rule: WireRule) -> None:
    """Their fields as plain JSON make the same again."""
    assert WireRule.from_fields(json.loads(json.dumps(asdict(rule)))) == rule
    for offer in (WireOffer(rule), WireOffer(rule, rule.budget / 2)):
        assert WireOffer.from_fields(json.loads(json.dumps(asdict(offer)))) == offer


def test_a_request_that_asks_for_nothing_gets_the_servers_rule() -> None:
    """Lossless or not, whatever the bounds."""
    assert WireOffer(SPECTRUM, 0.3).rule_for(None) is SPECTRUM
    assert WireOffer().rule_for(None) is LOSSLESS


@pytest.mark.parametrize("rule", [LOSSLESS, SPECTRUM, WireRule(WireCodec.CHANNEL, 1.0)], ids=lambda rule: rule.codec)
def test_a_budget_of_one_is_lossless(rule: WireRule) -> None:
    """Whatever the server's codec."""
    assert WireOffer(rule).rule_for(1.0).is_lossless


def test_a_request_changes_the_budget_only() -> None:
    """Codec, importance, sinks and INT4 stay the server's."""
    found = WireOffer(SPECTRUM, 0.3).rule_for(0.35)
    assert found == WireRule(WireCodec.SPECTRUM, 0.35, Importance.POSITIONAL, num_sinks=8, allows_int4=False)


def test_a_lossless_server_writes_a_smaller_budget_per_channel() -> None:
    """With its own importance, sinks and INT4."""
    own = WireRule(importance=Importance.KEY_NORM, num_sinks=2, allows_int4=False)
    assert WireOffer(own, 0.5).rule_for(0.6) == WireRule(WireCodec.CHANNEL, 0.6, Importance.KEY_NORM, 2, False)


@pytest.mark.parametrize(
    ("offer", "asked", "bounds"),
    [
        (WireOffer(), 0.999, "1 to 1"),
        (WireOffer(SPECTRUM), 0.39, "0.4 to 1"),
        (WireOffer(SPECTRUM, 0.3), 0.2999, "0.3 to 1"),
        (WireOffer(SPECTRUM), 1.01, "0.4 to 1"),
        (WireOffer(SPECTRUM), float("nan"), "0.4 to 1"),
    ],
)
def test_a_budget_out_of_bounds_is_refused_with_the_bounds(offer: WireOffer, asked: float, bounds: str) -> None:
    """The error names the field; a request never gets less than the server allows."""
    with pytest.raises(BadRequest, match=bounds) as caught:
        offer.rule_for(asked)
    assert caught.value.param == "kv_wire_budget"
    assert offer.rule_for(offer.least_budget).budget == offer.least_budget


@pytest.mark.parametrize("least", [0.0, -0.1, 0.41, float("nan")])
def test_bounds_that_shut_the_server_itself_out_are_refused(least: float) -> None:
    """The smallest budget is at most the server's own."""
    with pytest.raises(ConfigError, match="kv-wire-min-budget"):
        WireOffer(SPECTRUM, least)


@pytest.mark.parametrize("budget", [0.0, -1.0, 1.1, float("nan"), float("inf")])
def test_a_request_has_a_budget_or_none(budget: float) -> None:
    """A share of 16 bits above 0 and up to 1."""
    with pytest.raises(BadRequest) as caught:
        GenerateRequest("r", (1,), StopRule(1), kv_wire_budget=budget)
    assert caught.value.param == "kv_wire_budget"
