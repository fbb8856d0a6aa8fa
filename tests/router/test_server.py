"""The server around the application: port, start, stop."""

import asyncio
import ssl
import threading
import warnings
from pathlib import Path

import httpx
import pytest

from protocol.errors import ConfigError
from router.server import HttpServer
from tests.support.certificate import why_not, write_certificate
from tests.support.http_front import WAIT_S, FrontUnderTest, front_config, sse_events
from tests.support.scripted_generator import Script, ScriptedGenerator


def test_a_port_in_use_is_refused_with_advice() -> None:
    """The second server on a port learns which port, and which flag changes it."""
    front = FrontUnderTest()
    with front.served() as server, pytest.raises(ConfigError, match=rf"port {server.port} is in use.*--port"):
        HttpServer(front.app, front_config(port=server.port))


def test_an_unknown_host_is_refused_with_advice() -> None:
    """The error names the host and the flag."""
    with pytest.raises(ConfigError, match="--host"):
        HttpServer(FrontUnderTest().app, front_config(host="no.such.host.invalid"))


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_tls_is_served_with_the_given_certificate(tmp_path: Path) -> None:
    """A client that trusts it gets answers and streams over TLS 1.2 or later; plain HTTP gets none."""
    made = write_certificate(tmp_path, "IP:127.0.0.1")
    front = FrontUnderTest(config=front_config(tls_cert=str(made.cert), tls_key=str(made.key), api_keys=("key",)))
    trust = ssl.create_default_context(cafile=str(made.cert))
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(made.cert)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with front.served() as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        with httpx.Client(base_url=server.url, verify=trust, headers={"authorization": "Bearer key"}) as client:
            assert client.get("/v1/models").status_code == 200
            answer = client.post("/v1/completions", json={"prompt": "a", "stream": True})
            assert sse_events(answer)[-1] == "[DONE]"
        with httpx.Client(base_url=server.url, verify=old) as client, pytest.raises(httpx.ConnectError):
            client.get("/health")
        with httpx.Client(base_url=server.url.replace("https", "http")) as client, pytest.raises(httpx.HTTPError):
            client.get("/health")


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
def test_the_url_is_one_that_this_machine_can_ask(host: str, shown: str) -> None:
    """All interfaces are shown as loopback, IPv6 in brackets."""
    server = HttpServer(FrontUnderTest().app, front_config(host=host))
    assert server.url == f"http://{shown}:{server.port}"
    server.close()


async def test_it_serves_in_the_callers_loop_until_it_is_stopped() -> None:
    """Requests are answered once `started` is set; `serve` returns after `stop`, and the port is free again."""
    front = FrontUnderTest()
    server = HttpServer(front.app, front_config())
    serving = asyncio.ensure_future(server.serve())
    await asyncio.wait_for(asyncio.to_thread(server.started.wait), WAIT_S)
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/health")).status_code == 200
    server.stop()
    await asyncio.wait_for(serving, WAIT_S)
    again = HttpServer(front.app, front_config(port=server.port))
    assert again.port == server.port
    again.close()


def test_requests_that_outlast_the_grace_are_cancelled() -> None:
    """A stop does not wait for a generation that never ends, and cancels it on the workers."""
    front = FrontUnderTest(ScriptedGenerator(Script([65], hangs=True)), front_config(shutdown_grace_s=0))
    has_begun = threading.Event()
    failures: list[Exception] = []

    def read(url: str) -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "a", "stream": True}) as response:
                for _ in response.iter_raw():
                    has_begun.set()
        except httpx.HTTPError as error:
            failures.append(error)

    with front.served() as server:
        reader = threading.Thread(target=read, args=(server.url,))
        reader.start()
        assert has_begun.wait(WAIT_S)
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert len(front.generator.cancelled) == 1


def test_a_client_that_hangs_up_cancels_its_generation() -> None:
    """A closed connection reaches the generator through the real server."""
    front = FrontUnderTest(ScriptedGenerator(Script([65], hangs=True)))
    with front.served() as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json={"prompt": "a", "stream": True}) as response:
            next(response.iter_raw())
        assert front.generator.has_left.wait(WAIT_S)
    assert len(front.generator.cancelled) == 1
