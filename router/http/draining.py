"""What is asked with a drain, and who may ask it: somebody on this machine, and no web page nor proxy that only passes it on.

With API keys the caller shows one besides, as for every path. Knows nothing of workers.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import Field
from starlette.requests import Request

from router.front.sampling_body import Strict
from router.front.validation import parse_json
from router.http.body import read_body
from router.http.errors import Forbidden

MAX_BODY_BYTES = 4096
BODY_TIMEOUT_S = 10.0
MAX_TIMEOUT_S = 86_400.0
_PASSED_ON = ("origin", "forwarded", "x-forwarded-for", "via")
"""A browser sends the first with every POST of a page, proxies add the others."""


class DrainBody(Strict):
    """`POST /cluster/workers/{name}/drain`: what still runs after `timeout_s` goes on elsewhere. With `restart` a new process
    takes the worker's place once it is drained; otherwise it stays away.
    """

    timeout_s: Annotated[float, Field(ge=0, le=MAX_TIMEOUT_S)] = 30.0
    restart: bool = False


async def read_drain(request: Request) -> DrainBody:
    """What is asked. Raises `Forbidden` for a caller who may not, and what is wrong with the body."""
    host = request.client.host if request.client is not None else ""
    if not _is_loopback(host):
        raise Forbidden(
            f"workers are drained from the router's own machine only, and this came from {host or 'nowhere'}: run "
            "`kvferry drain` there, with --url http://127.0.0.1:PORT"
        )
    for header in _PASSED_ON:
        if header in request.headers:
            raise Forbidden(
                f"a request with the header {header!r} comes from a web page or a proxy, which drains nothing"
            )
    return parse_json(DrainBody, await read_body(request, MAX_BODY_BYTES, BODY_TIMEOUT_S))


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
