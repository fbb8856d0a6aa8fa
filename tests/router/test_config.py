"""The router's settings."""

from typing import Any

import pytest

from protocol.errors import ConfigError
from router.config import RouterConfig


def test_the_smaller_of_context_and_pool_limits_a_request() -> None:
    """A pool smaller than the context is the limit; a larger one, or none given, changes nothing."""
    assert RouterConfig("m", 4096).max_total_tokens == 4096
    assert RouterConfig("m", 4096, max_request_tokens=1000).max_total_tokens == 1000
    assert RouterConfig("m", 4096, max_request_tokens=9000).max_total_tokens == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"served_model_name": ""}, "served-model-name"),
        ({"port": 65536}, "port"),
        ({"port": -1}, "port"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"max_queue": -1}, "max_queue"),
        ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s"),
        ({"max_request_tokens": 1}, "max_request_tokens"),
    ],
)
def test_wrong_settings_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """The error names the setting."""
    settings: dict[str, Any] = {"served_model_name": "m", "context_tokens": 64} | changes
    with pytest.raises(ConfigError, match=message):
        RouterConfig(**settings)
