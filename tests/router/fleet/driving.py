"""Clusters of loopback workers, and coroutines run against them with clients or a whole fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from protocol.request import GeneratedToken
from router.fleet.clients import TokenInbox
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet, WorkerTarget
from router.fleet.grpc_clients import GrpcDecodeClient, GrpcPrefillClient
from router.reservations.contract import Reservations
from tests.router.fleet.loopback import Node
from tests.support.duo import greedy
from tests.support.events import events_of
from tests.support.inboxes import next_token
from tests.support.oracle import prompt_of
from tests.support.polling import poll_until
from transfer.local import LocalFabric

VOCAB = 97
NUM_TOKENS = 8
PROMPT = prompt_of(70, VOCAB)
DEADLINE_S = 30.0

Answer = TypeVar("Answer")


class Cluster:
    """Nodes of one fabric, stopped at the end of a test."""

    def __init__(self) -> None:
        self.fabric = LocalFabric()
        self.nodes: list[Node] = []

    def start(self, name: str, **options: int) -> Node:
        """A running worker."""
        node = Node(self.fabric, name, **options)
        self.nodes.append(node)
        return node

    def stop(self, node: Node) -> None:
        """Ends a worker as its process's end would."""
        self.nodes.remove(node)
        node.stop()
        self.fabric.kill(node.identity)

    def close(self) -> None:
        """Ends all; a thread that had ended by itself fails the test."""
        for node in list(self.nodes):
            node.check_threads()
            self.stop(node)


def with_clients(
    prefill: Node, decode: Node, work: Callable[[GrpcPrefillClient, GrpcDecodeClient], Awaitable[Answer]]
) -> Answer:
    """Runs a coroutine with a client of each, closed afterwards."""

    async def run() -> Answer:
        p, d = GrpcPrefillClient(prefill.target, "router-1"), GrpcDecodeClient(decode.target, "router-1")
        try:
            return await work(p, d)
        finally:
            await p.close()
            await d.close()

    return asyncio.run(run())


def check_idle(*nodes: Node) -> None:
    """All that was held comes back soon."""
    for node in nodes:
        poll_until(node.is_idle, what=f"{node.identity} idle")
        node.check_threads()


def with_fleet(
    nodes: list[Node],
    work: Callable[[Fleet, Dispatcher], Awaitable[Answer]],
    reservations: Reservations | None = None,
) -> Answer:
    """Runs a coroutine with a fleet that has joined the nodes and is looked after only when the test says so."""

    async def run() -> Answer:
        fleet = Fleet(reservations=reservations)
        dispatcher = Dispatcher(fleet, DEADLINE_S)
        try:
            await fleet.join([WorkerTarget(node.identity.name.split("-")[0], node.target) for node in nodes])
            await fleet.pause()
            return await work(fleet, dispatcher)
        finally:
            await dispatcher.close()
            await fleet.close()

    return asyncio.run(run())


async def drain(inbox: TokenInbox) -> None:
    """Reads until there is an error."""
    while True:
        await next_token(inbox)


async def answer(dispatcher: Dispatcher, num_tokens: int = NUM_TOKENS, cache_salt: str = "") -> list[int]:
    """Ids of an answer to the prompt. Nothing is reused between different salts."""
    asked = replace(greedy(PROMPT, num_tokens), cache_salt=cache_salt)
    events = [event async for event in events_of(dispatcher.generate(asked))]
    return [event.token_id for event in events if isinstance(event, GeneratedToken)]
