"""The transfers that a planner holds the network for: from the reservation of each to its end, and the last ones that ended.

A plan is a help, never a condition: where there is none the transfer goes on without. Whatever is reserved is given back once,
however its try ends. Chooses no rate and knows no port.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import KvferryError
from protocol.pace import Pace, TransferPlan, TransferProgress
from protocol.request import GenerateRequest
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.member import Member
from router.reservations.contract import Reservation, Reservations
from scheduling.prefill_time import PromptWork
from transfer.planner.network import TransferAsk

log = logging.getLogger(__name__)

NUM_RECENT = 32


@dataclass(frozen=True, slots=True)
class EndedTransfer:
    """What was planned of a transfer and what came of it.

    `num_bytes` is the prediction, `acknowledged_bytes` what P had reported when the router last heard of it,
    `reserved_bytes_per_second` the first rate that was held, `achieved_bytes_per_second` what P measured from its first chunk
    on; 0 where nothing was held or reported. The ends count from the reservation, in seconds; None for an end that was not
    predicted, or that did not come.
    """

    request_id: str
    prefill: str
    decode: str
    num_bytes: int
    acknowledged_bytes: int
    reserved_bytes_per_second: float
    achieved_bytes_per_second: float
    predicted_end_s: float | None
    actual_end_s: float | None


class PlannedTransfers:
    """All of a router's. `clock` gives seconds. Without `reservations` nothing is planned. Belongs to one loop.

    `on_rates` is told the achieved and the reserved rate of each transfer that landed and had both.
    """

    def __init__(self, reservations: Reservations | None, clock: Callable[[], float]) -> None:
        self.reservations = reservations
        self.clock = clock
        self.recent: deque[EndedTransfer] = deque(maxlen=NUM_RECENT)
        self.num_unplanned: Counter[str] = Counter()
        self.on_rates: Callable[[float, float], None] | None = None
        self._held: dict[int, PlannedTransfer] = {}
        self._early: dict[int, Pace] = {}
        self._num_asking = 0

    async def reserve(self, ask: TransferAsk, client: PrefillClient) -> PlannedTransfer | None:
        """Holds the network for a transfer that `client`'s worker is about to be given; None to go on without a plan."""
        if self.reservations is None:
            return None
        self._num_asking += 1
        try:
            reservation = await self.reservations.reserve(ask)
            reservation = Reservation(reservation.lease_id, self._early.pop(reservation.lease_id, reservation.pace))
        except KvferryError as error:
            self.num_unplanned[error.code] += 1
            log.info("request %s is sent without a plan: %s", ask.request_id, error.message)
            return None
        finally:
            self._num_asking -= 1
            if not self._num_asking:
                self._early.clear()
        transfer = self._held[reservation.lease_id] = PlannedTransfer(self, self.reservations, ask, client, reservation)
        return transfer

    def on_pace(self, lease_id: int, pace: Pace) -> None:
        """A lease has another pace: its prefill worker is told."""
        if (transfer := self._held.get(lease_id)) is not None:
            transfer.set_pace(pace)
        elif self._num_asking:
            self._early[lease_id] = pace  # the news may overtake the answer to whoever asked

    def forget(self, lease_id: int) -> None:
        """A lease was given back: no pace of it is passed on any more."""
        self._held.pop(lease_id, None)

    def ended(self, transfer: EndedTransfer) -> None:
        """Keeps what came of a transfer."""
        self.recent.append(transfer)
        rates = transfer.achieved_bytes_per_second, transfer.reserved_bytes_per_second
        if transfer.actual_end_s is not None and all(rates) and self.on_rates is not None:
            self.on_rates(*rates)


class PlannedTransfer:
    """One transfer: its lease ends when D says that the KV has landed, when P says that it has ended, or when the try is over,
    whichever comes first. P is listened to until the try is over: its last report may come after D's.
    """

    def __init__(
        self,
        transfers: PlannedTransfers,
        reservations: Reservations,
        ask: TransferAsk,
        client: PrefillClient,
        reservation: Reservation,
    ) -> None:
        self._transfers = transfers
        self._reservations = reservations
        self._ask = ask
        self._client = client
        self._lease_id = reservation.lease_id
        self._asked_at = transfers.clock()
        self._pace = reservation.pace
        self._reserved = 0.0
        self._predicted_end_s: float | None = None
        self._landed_after_s: float | None = None
        self._last: TransferProgress | None = None
        self._is_held = True
        self._is_over = False
        self._note_reserved()
        client.watch(ask.request_id, self._on_progress)

    @property
    def plan(self) -> TransferPlan:
        """What the prefill worker is to be told with the prompt."""
        return TransferPlan(self._pace, self._ask.produced_bytes_per_second)

    def set_pace(self, pace: Pace) -> None:
        """The planner has changed the pace."""
        self._pace = pace
        self._note_reserved()
        self._client.set_pace(self._ask.request_id, pace)

    def landed(self) -> None:
        """The decode worker has all of it."""
        if self._landed_after_s is None and not self._is_over:
            self._landed_after_s = self._transfers.clock() - self._asked_at
        self._release()
        self._settle()

    def close(self) -> None:
        """The try is over, or has given this transfer up."""
        self._release()
        if self._is_over:
            return
        self._is_over = True
        self._client.unwatch(self._ask.request_id)
        last, ask = self._last, self._ask
        self._transfers.ended(
            EndedTransfer(
                request_id=ask.request_id,
                prefill=ask.source,
                decode=ask.destination,
                num_bytes=ask.num_bytes,
                acknowledged_bytes=last.acknowledged_bytes if last else 0,
                reserved_bytes_per_second=self._reserved,
                achieved_bytes_per_second=last.acknowledged_bytes / last.seconds if last and last.seconds > 0 else 0.0,
                predicted_end_s=self._predicted_end_s,
                actual_end_s=self._landed_after_s,
            )
        )

    def _on_progress(self, progress: TransferProgress) -> None:
        if self._last is not None and self._last.is_ended:
            return
        self._last = progress
        if self._is_held:
            self._reservations.progress(self._lease_id, progress.acknowledged_bytes)
        if progress.is_ended:
            self._release()
            self._settle()

    def _settle(self) -> None:
        """Over as soon as both ends have said so."""
        if self._landed_after_s is not None and self._last is not None and self._last.is_ended:
            self.close()

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._transfers.forget(self._lease_id)
            self._reservations.release(self._lease_id)

    def _note_reserved(self) -> None:
        """The first rate that is held lasts to the end, as planned then: from now, or from when the prefill begins."""
        rate = self._pace.reserved_bytes_per_second
        if not self._reserved and rate > 0:
            self._reserved = rate
            start_s = max(self._ask.start_in_s, self._transfers.clock() - self._asked_at)
            self._predicted_end_s = start_s + self._ask.num_bytes / rate


def ask_of(
    request: GenerateRequest,
    prefill: Member[PrefillClient],
    decode: Member[DecodeClient],
    num_bytes: float,
    num_cached_tokens: int = 0,
) -> TransferAsk:
    """What is asked for a prompt of `num_bytes` on the wire that is already counted among those queued on `prefill`, without
    the `num_cached_tokens` that it has.

    Its KV is produced evenly while it is read, which begins when the prompts before it have been.
    """
    num_computed = request.num_prompt_tokens - num_cached_tokens
    own_s = prefill.prefill_time.predict_s(PromptWork(num_computed, num_cached_tokens))
    queued = PromptWork(num_computed, num_cached_tokens, max(0, prefill.num_queued_tokens - num_computed))
    return TransferAsk(
        request_id=request.request_id,
        source=prefill.name,
        destination=decode.name,
        num_bytes=math.ceil(num_bytes),
        produced_bytes_per_second=max(1, round(num_bytes / own_s)),
        start_in_s=max(0.0, prefill.prefill_time.predict_s(queued) - own_s),
    )
