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
        ({"worker_timeout_s": 0}, "worker_timeout_s"),
        ({"readiness_window_s": -1}, "readiness_window_s"),
        ({"max_moves": -1}, "max_moves"),
        ({"max_request_tokens": 1}, "max_request_tokens"),
        ({"max_choices": 0}, "max_choices"),
        ({"grpc_port": -1}, "grpc-port"),
        ({"grpc_port": 65536}, "grpc-port"),
        ({"grpc_port": 8000}, "both 8000"),
        ({"api_keys": ("good", "")}, "API key number 2"),
        ({"api_keys": ("with space",)}, "API key number 1"),
        ({"tls_cert": "cert.pem"}, "tls-key"),
        ({"tls_key": "key.pem"}, "tls-cert"),
        ({"cors_origins": ("app.example.com",)}, "cors-origins"),
        ({"cors_origins": ("https://app.example.com/path",)}, "cors-origins"),
    ],
)
def test_wrong_settings_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """The error names the setting."""
    settings: dict[str, Any] = {"served_model_name": "m", "context_tokens": 64} | changes
    with pytest.raises(ConfigError, match=message):
        RouterConfig(**settings)


def test_keys_are_not_in_what_is_printed() -> None:
    """A config can be logged; and free ports may be asked for twice."""
    config = RouterConfig("m", 64, port=0, grpc_port=0, api_keys=("sk-marker",), cors_origins=("*",))
    assert "sk-marker" not in f"{config} {config!r}"


def test_a_certificate_makes_the_scheme() -> None:
    """URLs say https exactly when TLS is on."""
    assert RouterConfig("m", 64).scheme == "http"
    assert RouterConfig("m", 64, tls_cert="cert.pem", tls_key="key.pem").scheme == "https"
