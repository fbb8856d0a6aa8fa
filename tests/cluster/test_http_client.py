"""What the command line asks of a router: with a key, over TLS, and never a key to anybody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cluster.http_client import Access, get_json, post_json, stream_chat
from protocol.errors import ConfigError, NotReady, Unauthenticated
from tests.support.certificate import Certificate, why_not, write_certificate
from tests.support.http_front import MODEL, FrontUnderTest, front_config

KEY = "sk-marker"
needs_openssl = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate that names another host than the one it is served from."""
    return write_certificate(tmp_path_factory.mktemp("certificate"), "DNS:kvferry.example")


def test_a_key_opens_the_router_and_its_lack_is_told() -> None:
    """Views and streams carry it; without it the error says where to put it."""
    with FrontUnderTest(config=front_config(api_keys=("other", KEY))).served() as server:
        assert get_json(f"{server.url}/v1/models", Access(KEY))["data"][0]["id"] == MODEL
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        assert list(stream_chat(server.url, body, 10.0, Access(KEY)))
        for access in (Access(), Access("wrong")):
            with pytest.raises(Unauthenticated, match="KVFERRY_API_KEY"):
                get_json(f"{server.url}/v1/models", access)
            with pytest.raises(Unauthenticated, match="KVFERRY_API_KEY"):
                list(stream_chat(server.url, body, 10.0, access))


@needs_openssl
def test_a_certificate_is_verified_against_the_one_that_is_given(elsewhere: Certificate, tmp_path: Path) -> None:
    """The server's own is enough on this machine, whatever host it names; another one, or none, is refused."""
    config = front_config(tls_cert=str(elsewhere.cert), tls_key=str(elsewhere.key))
    stranger = write_certificate(tmp_path, "DNS:kvferry.example")
    with FrontUnderTest(config=config).served() as server:
        assert server.url.startswith("https://")
        assert get_json(f"{server.url}/health", Access(certificate=str(elsewhere.cert))) == {"status": "ok"}
        for access in (Access(), Access(certificate=str(stranger.cert))):
            with pytest.raises(NotReady, match="certificate verify failed"):
                get_json(f"{server.url}/health", access)
        with pytest.raises(ConfigError, match="--tls-cert"):
            get_json(f"{server.url}/health", Access(certificate=str(tmp_path / "missing")))
        with pytest.raises(NotReady):
            get_json(server.url.replace("https", "http"))


def test_a_key_does_not_follow_a_redirect() -> None:
    """Who answers with another place to ask gets the key for itself, that place gets none."""
    with _recording(None) as (_, second), _recording(second.url) as (first_seen, first):
        get_json(first.url, Access(KEY))
        assert first_seen == [f"Bearer {KEY}"]
        assert second.seen == [None]


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's proxy would read the key."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with _recording(None) as (seen, server):
        get_json(server.url, Access(KEY))
        assert seen == [f"Bearer {KEY}"]


@pytest.mark.parametrize("key", ["caf\u00e9-marker", "marker\nx: y", "\x7fmarker"])
def test_a_key_that_cannot_be_sent_is_not_shown(key: str) -> None:
    """The standard library would quote it in its error."""
    with pytest.raises(ConfigError) as caught:
        Access(key)
    assert "marker" not in caught.value.message
    assert KEY not in repr(Access(KEY))


class _Server(HTTPServer):
    seen: list[str | None]
    url: str


@contextmanager
def _recording(redirects_to: str | None) -> Iterator[tuple[list[str | None], _Server]]:
    """A server that keeps the `authorization` of what it is asked, and answers with `[]` or a redirect."""
    seen: list[str | None] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("authorization"))
            self.send_response(302 if redirects_to else 200)
            if redirects_to:
                self.send_header("location", redirects_to)
            self.send_header("content-length", "0" if redirects_to else "2")
            self.end_headers()
            if not redirects_to:
                self.wfile.write(b"[]")

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

    server = _Server(("127.0.0.1", 0), Recorder)
    server.seen, server.url = seen, f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield seen, server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_was_wrong_with_a_posted_body_is_told_in_the_server_s_words() -> None:
    """As the user's mistake; a server that cannot, and a missing key, are told as for what is only read."""
    with FrontUnderTest(config=front_config(api_keys=(KEY,))).served() as server:
        assert post_json(f"{server.url}/tokenize", {"prompt": "hi"}, Access(KEY))["count"] == 2
        with pytest.raises(ConfigError, match="unknown field 'prompts'"):
            post_json(f"{server.url}/tokenize", {"prompts": "hi"}, Access(KEY))
        with pytest.raises(Unauthenticated, match="KVFERRY_API_KEY"):
            post_json(f"{server.url}/tokenize", {"prompt": "hi"})
    with pytest.raises(NotReady):
        post_json(f"{server.url}/tokenize", {"prompt": "hi"})
