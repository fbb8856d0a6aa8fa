"""A planner served on loopback, routers that share it, and a cable between them that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from protocol.pace import Pace
from router.reservations.server import PlannerAddress, PlannerServer, desk_for_sharing
from router.reservations.shared import SharedReservations
from transfer.planner.desk import PlannerDesk
from transfer.planner.ledger import LeaseTerms
from transfer.planner.network import NetworkSight, PairSight, TransferAsk

MB = 1_000_000
DEADLINE_S = 20.0
SIGHT = NetworkSight(
    tuple(PairSight(prefill, decode, 100.0 * MB, 0.0) for prefill in ("p0", "p1") for decode in ("d0", "d1"))
)


def ask(source: str = "p0", destination: str = "d0", num_bytes: int = 1000 * MB, rate: int = 80 * MB) -> TransferAsk:
    """A transfer that begins now."""
    return TransferAsk(f"{source}-{destination}", source, destination, num_bytes, rate, 0.0)


async def until(step: Callable[[], bool]) -> None:
    """Returns when `step` is true. Raises `TimeoutError` when it does not become so."""
    async with asyncio.timeout(DEADLINE_S):
        while not step():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)


class ServedPlanner:
    """A planner's server and the desk behind it."""

    def __init__(self, terms: LeaseTerms, port: int, token: str) -> None:
        self.desk: PlannerDesk = desk_for_sharing(terms)
        self.server = PlannerServer(self.desk, PlannerAddress("127.0.0.1", port, token), terms)
        self.target = ""

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.target.rpartition(":")[2])


@asynccontextmanager
async def planner(lease_s: float = 10.0, port: int = 0, token: str = "") -> AsyncIterator[ServedPlanner]:
    """A planner that serves until the end of the block."""
    served = ServedPlanner(LeaseTerms(lease_s), port, token)
    served.target = await served.server.start()
    try:
        yield served
    finally:
        await served.server.stop()


class Router:
    """A router's end, and the paces that it was told."""

    def __init__(self, target: str, name: str, token: str, cluster: str) -> None:
        self.reservations = SharedReservations(target, name, token, lambda worker: f"{worker}@{cluster}")
        self.paces: dict[int, Pace] = {}
        self.told = asyncio.Event()

    def on_pace(self, lease_id: int, pace: Pace) -> None:
        """Remembers the newest pace of a lease."""
        self.paces[lease_id] = pace
        self.told.set()


@asynccontextmanager
async def router(
    target: str, name: str, token: str = "", *, cluster: str = "", waits: bool = True
) -> AsyncIterator[Router]:
    """A router that sees `SIGHT`, and by default is connected when the block begins. Those of one `cluster` have the same
    workers.
    """
    found = Router(target, name, token, cluster)
    await found.reservations.start(found.on_pace)
    found.reservations.observe(SIGHT)
    try:
        if waits:
            await until(lambda: {"p0", "p1", "d0", "d1"} <= {port.worker for port in found.reservations.use().ports})
        yield found
    finally:
        await found.reservations.close()


class Cable:
    """Carries TCP connections to `port` of this machine, as long as it is not cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._listening = 0

    @property
    def target(self) -> str:
        """Where it is entered; the same after it was mended."""
        return f"127.0.0.1:{self._listening}"

    async def mend(self) -> None:
        """Carries connections from now on."""
        self._server = await asyncio.start_server(self._link, "127.0.0.1", self._listening)
        self._listening = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Ends all connections, and takes no more."""
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._links.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(reader, far_writer))
                group.create_task(_carry(far_reader, writer))
        finally:
            for end in (writer, far_writer):
                end.close()
            if task is not None:
                self._links.discard(task)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()
