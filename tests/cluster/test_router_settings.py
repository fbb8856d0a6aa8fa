"""From settings to the router's config: keys, certificates, ports, origins, and what is never shown."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cluster.cli import main
from cluster.reservations_choice import reservations_of
from cluster.router_process import RouterSpec, rules_of
from cluster.router_settings import (
    api_keys_of,
    cluster_token_of,
    grpc_port_of,
    is_loopback,
    router_config,
    warnings_of,
)
from cluster.secret_files import MIN_TOKEN_CHARS
from cluster.serve import check_ports
from cluster.settings import ServeSettings
from cluster.worker_spec import WorkerSpec, spec_of
from protocol.errors import ConfigError
from protocol.wire_rule import WireCodec, WireOffer, WireRule
from router.config import RouterConfig, RoutingPolicy
from router.fleet.question import RoutingRules
from router.server import listening_socket
from tests.support.certificate import why_not, write_certificate
from transfer.planner.network import NetworkSight, PairSight

SECRET = "sk-marker-of-a-secret"
LOSSLESS_WITHOUT_INT4 = WireRule(allows_int4=False)
needs_openssl = pytest.mark.skipif(bool(why_not()), reason=why_not())


def _settings(**changes: Any) -> ServeSettings:
    return ServeSettings(model="m", **changes)


def test_keys_of_the_flag_and_of_the_file_are_taken_together(tmp_path: Path) -> None:
    """Commas and lines separate, comments and blanks are skipped, a key that is there twice counts once."""
    file = tmp_path / "keys"
    file.write_text("# who: team a\nkey-3\n\n  key-1  \nkey-4\n")
    assert api_keys_of(_settings(api_key="key-1, key-2", api_key_file=str(file))) == (
        "key-1",
        "key-2",
        "key-3",
        "key-4",
    )
    assert api_keys_of(_settings()) == ()


@pytest.mark.parametrize("content", [b"", b"\n# nothing else\n", b"\xff\xfe\x00", b"x" * 2_000_000])
def test_a_key_file_without_keys_is_named(tmp_path: Path, content: bytes) -> None:
    """Serving without keys because a file was empty or wrong would let everybody in."""
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"--api-key-file.*keys"):
        router_config(_settings(api_key_file=str(file)))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A missing file and a directory, for each of the settings that name one."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match="--api-key-file: cannot read"):
            router_config(_settings(api_key_file=str(path)))
        with pytest.raises(ConfigError, match="--tls-cert: cannot read"):
            router_config(_settings(tls_cert=str(path), tls_key=str(path)))
        with pytest.raises(ConfigError, match="--cluster-token-file: cannot read"):
            cluster_token_of(_settings(cluster_token_file=str(path)))


@pytest.mark.parametrize("key", ["with space", "caf\u00e9", "tab\tbed", "good-one,bad one"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    """The message counts the keys instead."""
    with pytest.raises(ConfigError, match="API key number") as caught:
        router_config(_settings(api_key=f"{SECRET},{key}"))
    assert SECRET not in caught.value.message
    assert key not in caught.value.message


def test_no_secret_is_in_what_is_printed_or_logged(tmp_path: Path) -> None:
    """Settings, configs and specs can be formatted; what crosses to a process has the secrets."""
    settings = _settings(api_key=SECRET)
    config = router_config(settings)
    router = RouterSpec("directory", config, 0, "info", SECRET)
    worker = replace(spec_of(settings, "decode", 0, device="cpu", num_threads=1), cluster_token=SECRET)
    for shown in (settings, config, router, worker):
        assert SECRET not in repr(shown)
        assert SECRET not in str(shown)
    assert RouterSpec.from_json(router.to_json()) == router
    assert RouterSpec.from_json(router.to_json()).config.api_keys == (SECRET,)
    assert WorkerSpec.from_json(worker.to_json()) == worker


def test_everything_reaches_the_router(tmp_path: Path) -> None:
    """The router's config has what the settings say, and survives the way to its process."""
    settings = _settings(
        max_body="2MiB", cors_origins="https://a.example, http://b.example:3000", grpc_port="off", log_prompts=True
    )
    config = router_config(settings)
    assert (config.max_body_bytes, config.log_prompts, config.grpc_port) == (2 * 2**20, True, None)
    assert config.wire == WireOffer(LOSSLESS_WITHOUT_INT4)
    assert config.cors_origins == ("https://a.example", "http://b.example:3000")
    assert RouterSpec.from_json(RouterSpec("d", config, 0, "info").to_json()).config == config
    assert json.loads(RouterSpec("d", config, 0, "info").to_json())["config"].keys() == asdict(config).keys()


def test_the_rule_of_the_wire_reaches_the_router() -> None:
    """With the bounds of what requests may ask for, and through the way to its process."""
    config = router_config(_settings(kv_wire_budget=0.6, kv_wire_min_budget=0.5, kv_wire_int4="on"))
    assert config.wire == WireOffer(WireRule(WireCodec.CHANNEL, 0.6), 0.5)
    assert RouterSpec.from_json(RouterSpec("d", config, 0, "info").to_json()).config == config


@pytest.mark.parametrize("name", RoutingPolicy)
def test_the_routing_policy_reaches_the_router(name: RoutingPolicy) -> None:
    """By its name, as a policy, through the way to its process; with the chunk that its workers read prompts in."""
    config = router_config(_settings(routing_policy=name.value))
    crossed = RouterSpec.from_json(RouterSpec("d", config, 0, "info", chunk_tokens=64).to_json())
    assert crossed.config.routing_policy is name
    assert crossed.chunk_tokens == 64


def test_what_is_put_up_with_reaches_the_fleet() -> None:
    """How long a worker may be silent, how often a request moves, how long a proof counts; by default as stated."""
    config = router_config(_settings(worker_timeout=6.0, max_moves=5, readiness_window=12.0))
    spec = RouterSpec.from_json(RouterSpec("d", config, 0, "info").to_json())
    rules = rules_of(spec, spec.config)
    assert (rules.worker_timeout_s, rules.max_moves, rules.readiness_window_s) == (6.0, 5, 12.0)
    assert rules_of(spec, router_config(_settings())) == RoutingRules(wire=config.wire)


def test_an_unknown_routing_policy_is_refused() -> None:
    """With the ones that there are."""
    with pytest.raises(ConfigError, match="round_robin"):
        _settings(routing_policy="fastest")


@pytest.mark.parametrize(("max_sequences", "most"), [(1, 1), (64, 64), (1000, 128)])
def test_a_request_has_no_more_choices_than_a_worker_runs(max_sequences: int, most: int) -> None:
    """The smaller of the protocol's limit and a decode worker's batch."""
    assert router_config(_settings(max_sequences=max_sequences)).max_choices == most


@pytest.mark.parametrize(
    ("port", "grpc_port", "expected"),
    [(8000, "auto", 8001), (0, "auto", 0), (8000, "off", None), (8000, "9000", 9000), (8000, "0", 0)],
)
def test_the_grpc_port(port: int, grpc_port: str, expected: int | None) -> None:
    """`auto` follows the HTTP port."""
    assert grpc_port_of(_settings(port=port, grpc_port=grpc_port)) == expected


@pytest.mark.parametrize(
    ("port", "grpc_port"), [(8000, "on"), (8000, "-1"), (8000, "70000"), (8000, "8000"), (65535, "auto"), (1, "")]
)
def test_a_wrong_grpc_port_is_named(port: int, grpc_port: str) -> None:
    """Neither a port nor a word, out of range, or HTTP's own."""
    with pytest.raises(ConfigError, match="grpc-port"):
        router_config(_settings(port=port, grpc_port=grpc_port))


def test_both_ports_are_checked_before_anything_starts() -> None:
    """A taken gRPC port names its flag."""
    with listening_socket("127.0.0.1", 0, "--port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} is in use.*--grpc-port"):
            check_ports(RouterConfig("m", 64, port=0, grpc_port=port))
        with pytest.raises(ConfigError, match=rf"port {port} is in use.*--port"):
            check_ports(RouterConfig("m", 64, port=port, grpc_port=None))
        check_ports(RouterConfig("m", 64, port=0, grpc_port=0))


@pytest.mark.parametrize("origins", ["app.example.com", "https://app.example.com/", "https://*.example.com", "null"])
def test_an_origin_that_matches_nothing_is_named(origins: str) -> None:
    """A browser sends scheme, host and port; anything else would never be equal to it."""
    with pytest.raises(ConfigError, match="cors-origins"):
        router_config(_settings(cors_origins=f"https://good.example,{origins}"))


@needs_openssl
def test_a_certificate_and_its_key_are_checked_together(tmp_path: Path) -> None:
    """A pair passes, with absolute paths; a key of another certificate, a missing half and garbage do not."""
    (tmp_path / "other").mkdir()
    mine, other = write_certificate(tmp_path, "IP:127.0.0.1"), write_certificate(tmp_path / "other", "IP:127.0.0.1")
    relative = os.path.relpath(mine.cert)
    config = router_config(_settings(tls_cert=relative, tls_key=str(mine.key)))
    assert Path(config.tls_cert).is_absolute()
    assert config.scheme == "https"
    with pytest.raises(ConfigError, match="the certificate's own"):
        router_config(_settings(tls_cert=str(mine.cert), tls_key=str(other.key)))
    with pytest.raises(ConfigError, match="belong together"):
        _settings(tls_cert=str(mine.cert))
    mine.key.write_text("garbage")
    with pytest.raises(ConfigError, match="PEM"):
        router_config(_settings(tls_cert=str(mine.cert), tls_key=str(mine.key)))


@needs_openssl
def test_a_key_with_a_passphrase_is_refused_without_a_prompt(tmp_path: Path) -> None:
    """OpenSSL would otherwise ask the terminal and wait for ever."""
    mine = write_certificate(tmp_path, "IP:127.0.0.1", passphrase="secret passphrase")
    with pytest.raises(ConfigError, match="without a passphrase"):
        router_config(_settings(tls_cert=str(mine.cert), tls_key=str(mine.key)))


def test_a_cluster_has_a_token_of_its_own() -> None:
    """Never empty, never the same twice."""
    tokens = {cluster_token_of(_settings()) for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) >= 2 * MIN_TOKEN_CHARS for token in tokens)


def test_a_cluster_s_token_can_come_from_a_file(tmp_path: Path) -> None:
    """Its line; short, empty and broken ones are refused and not shown."""
    file = tmp_path / "token"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    settings = _settings(cluster_token_file=str(file))
    assert cluster_token_of(settings) == "0123456789abcdef0123456789abcdef"
    for content in (
        "",
        "\n",
        "tooshort",
        "two words that are long enough",
        "caf\u00e9-caf\u00e9-caf\u00e9-caf\u00e9",
        "a\nb" * 20,
    ):
        file.write_text(content)
        with pytest.raises(ConfigError, match="--cluster-token-file") as caught:
            cluster_token_of(settings)
        assert not content.strip() or content.strip() not in caught.value.message


def test_a_server_that_others_reach_is_warned_about() -> None:
    """One sentence for missing keys, one for missing encryption; none on loopback."""
    assert warnings_of(RouterConfig("m", 64)) == []
    assert len(warnings_of(RouterConfig("m", 64, host="0.0.0.0"))) == 2
    assert len(warnings_of(RouterConfig("m", 64, host="10.0.0.1", api_keys=("k",)))) == 1
    assert warnings_of(RouterConfig("m", 64, host="::", api_keys=("k",), tls_cert="c", tls_key="k")) == []
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "[::1]", "localhost", "127.1.2.3")] == [True] * 5
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")] == [False] * 5


def test_a_wrong_key_is_one_line_without_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    """As the user of the command line sees it."""
    assert main(["serve", "m", "--api-key", f"{SECRET} with spaces"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert SECRET not in captured.err + captured.out


def test_planned_transfers_are_reserved_by_the_router() -> None:
    """By default; not for the other ways to push, nor where nothing is shipped. The rate of links reaches its planner."""
    assert router_config(_settings()).plans_transfers
    for changes in ({"kv_push": "chunks"}, {"kv_push": "end"}, {"prefill": 0}):
        config = router_config(_settings(**changes))
        assert not config.plans_transfers
        assert reservations_of(config, "", str) is None
    config = router_config(_settings(link_bandwidth="25Mbit"))
    assert config.link_bytes_per_second == 3_125_000
    assert router_config(_settings()).link_bytes_per_second is None
    spec = RouterSpec("directory", config, 0, "info")
    assert RouterSpec.from_json(spec.to_json()) == spec
    reservations = reservations_of(config, "", str)
    assert reservations is not None
    reservations.observe(NetworkSight((PairSight("prefill-0", "decode-0", 1e9, 0.0),)))
    assert {port.bytes_per_second for port in reservations.use().ports} == {3_125_000}
