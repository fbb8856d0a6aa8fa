"""Who gets blocks, places and tokens on a decode worker: by policy, priority, prediction and time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from decode_worker.config import DecodeConfig
from decode_worker.outlet import OutletBatch
from decode_worker.worker import DecodeWorker
from protocol.phase import Phase
from protocol.request import GenerateRequest
from scheduling.chunk_size import MIN_CHUNK_TOKENS
from scheduling.policies.choose import make_policy
from scheduling.work import Work
from tests.duo.asking import VOCAB
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.timed_engine import TimedEngine, step_s
from tests.support.tiny_model import tiny_engine

pytestmark = pytest.mark.timeout(20)


@dataclass
class _Alone:
    """A decode worker that reads prompts itself, and what it has said so far."""

    config: DecodeConfig
    num_blocks: int = 64
    block_size: int = 16
    num_prefill: int = 0
    duo: Duo = field(init=False)
    batches: list[OutletBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        engine = {"num_blocks": self.num_blocks, "block_size": self.block_size}
        options = DuoOptions(
            num_prefill=self.num_prefill,
            make_engine=TimedEngine.tiny,
            prefill_engine={"num_blocks": 256},
            decode_engine=engine,
            decode=self.config,
        )
        self.duo = Duo(options)
        self.decode.outlets.subscribe("router", self.batches.append)

    @property
    def decode(self) -> DecodeWorker:
        return self.duo.decodes[0]

    def ask(self, num_prompt: int, num_tokens: int = 3, priority: int = 0) -> GenerateRequest:
        asked = replace(greedy(prompt_of(num_prompt, VOCAB), num_tokens), priority=priority)
        self.decode.generate(asked, "router", 600.0)
        return asked

    def served(self) -> list[str]:
        """Requests in the order of their first tokens."""
        return list(dict.fromkeys(token.request_id for batch in self.batches for token in batch.tokens))

    def answer(self, asked: GenerateRequest) -> list[int]:
        tokens = (token for batch in self.batches for token in batch.tokens)
        return [token.token_id for token in tokens if token.request_id == asked.request_id]


ORDERS = {
    "fcfs": [0, 1, 2, 3],
    "priority": [2, 0, 1, 3],
    "spf": [3, 1, 2, 0],
    "spf-aging": [3, 1, 2, 0],
    "sjf": [3, 2, 1, 0],
    "srpt": [3, 2, 1, 0],
    "qba": [3, 2, 1, 0],
}


@pytest.mark.parametrize("policy", ORDERS)
def test_places_are_given_by_the_policy(policy: str) -> None:
    """One place: prompts of 90, 20, 22 and 4 tokens, the second with a long answer to come, the third urgent."""
    alone = _Alone(DecodeConfig(max_sequences=1, policy=policy))
    asked = [alone.ask(90), alone.ask(20, 40), alone.ask(22, priority=-1), alone.ask(4)]
    alone.duo.settle()
    places = {one.request_id: place for place, one in enumerate(asked)}
    assert [places[request_id] for request_id in alone.served()] == ORDERS[policy]
    alone.duo.check_idle()


def test_a_steps_tokens_are_divided_by_the_policy() -> None:
    """All hold blocks: with `spf` the shortest prompt is read before those that came earlier."""
    alone = _Alone(DecodeConfig(max_step_tokens=16, max_sequences=8, policy="spf"))
    asked = [alone.ask(num_prompt) for num_prompt in (90, 40, 12)]
    alone.duo.settle()
    assert alone.served() == [one.request_id for one in reversed(asked)]


def test_tickets_are_given_by_the_policy() -> None:
    """Reservations wait in the same line as prompts that are read here: the one place goes to the urgent one."""
    alone = _Alone(DecodeConfig(max_sequences=1, policy="priority"), num_prefill=1)
    alone.duo.run(lambda: alone.duo.fleet.look())
    prefill = alone.duo.prefills[0].identity
    late = alone.decode.reserve(greedy(prompt_of(30, VOCAB)), prefill, "router", 600.0)
    local = alone.ask(30, priority=-1)
    urgent = replace(greedy(prompt_of(30, VOCAB)), priority=-2)
    soon = alone.decode.reserve(urgent, prefill, "router", 600.0)
    alone.duo.settle()
    assert soon.done()
    assert not late.done()
    assert not alone.served()
    alone.decode.cancel(urgent.request_id)
    alone.duo.settle(20.0)
    assert alone.served() == [local.request_id]
    assert late.done()
    alone.decode.cancel_router("router")
    alone.duo.settle(20.0)
    alone.duo.check_idle()


def test_nobody_overtakes_the_first_that_waits_for_blocks() -> None:
    """A short prompt would fit beside those that run, and waits behind a long one that came first."""
    alone = _Alone(DecodeConfig(max_sequences=8), num_blocks=16)
    first, long, short = alone.ask(100, 60), alone.ask(150), alone.ask(4)
    alone.duo.settle()
    assert alone.served() == [one.request_id for one in (first, long, short)]


@pytest.mark.parametrize("reserve", [0.0, 1.0])
def test_a_reserve_saves_preemptions(reserve: float) -> None:
    """With all of the predicted output kept free nobody is preempted where otherwise many are; the text is the same."""
    alone = _Alone(DecodeConfig(max_step_tokens=48, max_sequences=8, kv_reserve=reserve), num_blocks=28, block_size=4)
    lengths = (30, 33, 35, 17, 22)
    asked = [alone.ask(length, 20) for length in lengths]
    alone.duo.settle()
    for one in asked:
        assert alone.answer(one) == answer_in_one_piece(tiny_engine(), one.prompt_token_ids, 20)
    assert (alone.decode.num_preemptions > 0) == (reserve == 0.0)
    alone.duo.check_idle()


@pytest.mark.parametrize("urgent", [0, 1])
def test_the_least_urgent_is_preempted(urgent: int) -> None:
    """Blocks run out for two that decode: the one that is not urgent loses its own, be it the older one."""
    alone = _Alone(DecodeConfig(max_sequences=2), num_blocks=10, block_size=4)
    asked = [alone.ask(9, 20, priority=-1 if number == urgent else 0) for number in (0, 1)]
    preempted: set[str] = set()
    while alone.duo.turn():
        sequences = alone.decode.sequences.values()
        preempted |= {one.sequence_id for one in sequences if one.record.phase is Phase.PREEMPTED}
    assert preempted == {asked[1 - urgent].request_id}


def test_what_was_preempted_goes_before_what_is_shorter() -> None:
    """The youngest loses its blocks and gets some again before a shorter prompt that waits, under `spf` as well."""
    alone = _Alone(DecodeConfig(max_sequences=2, policy="spf"), num_blocks=10, block_size=4)
    first, second, third = alone.ask(9, 20), alone.ask(10, 20), alone.ask(11, 20)
    alone.duo.settle()
    assert alone.decode.num_preemptions > 0
    assert alone.served() == [one.request_id for one in (first, second, third)]
    ended = [token.request_id for batch in alone.batches for token in batch.tokens if token.finish is not None]
    assert ended == [one.request_id for one in (first, second, third)]


@pytest.mark.parametrize("policy", ORDERS)
def test_what_has_moved_here_goes_first(policy: str) -> None:
    """A client that has the beginning of an answer waits for nobody who has nothing yet, nor gives its blocks up for him."""
    alone = _Alone(DecodeConfig(max_sequences=1, policy=policy))
    alone.ask(90)
    alone.ask(4, priority=-1)
    moved = replace(greedy(prompt_of(60, VOCAB), 3), num_continued=20)
    alone.decode.generate(moved, "router", 600.0)
    alone.duo.settle()
    assert alone.served()[0] == moved.request_id
    alone.duo.check_idle()


def test_chunks_keep_a_step_under_the_target() -> None:
    """Once some steps have been seen, prompts are read in chunks that fill the target and do not pass it."""
    target_s = 0.15
    alone = _Alone(DecodeConfig(max_step_tokens=256, max_sequences=4, itl_target_s=target_s), num_blocks=128)
    engine = alone.decode.engine
    assert isinstance(engine, TimedEngine)
    engine.clock = alone.duo.clock
    alone.ask(4, 120)
    for _ in range(20):
        alone.duo.turn()
    for num_tokens in (398, 399, 400):  # of which none begins as another one does
        alone.ask(num_tokens)
    alone.duo.settle()
    mixed = [batch for batch in engine.steps if len(batch.slices) > 1 and batch.num_tokens > MIN_CHUNK_TOKENS][2:]
    assert len(mixed) > 10
    assert max(step_s(batch) for batch in mixed) < 1.1 * target_s
    assert sorted(step_s(batch) for batch in mixed)[len(mixed) // 2] > 0.8 * target_s


@pytest.mark.parametrize("policy", ["spf", "spf-aging"])
def test_waiting_is_bounded_where_that_is_promised(policy: str) -> None:
    """Short prompts come faster than they are served. With ageing a long one is passed only by those that come within its
    bound; without, by all of them.
    """
    alone = _Alone(DecodeConfig(max_sequences=1, policy=policy))
    alone.ask(4)
    alone.duo.turn()
    came_s: dict[str, float] = {}
    long = alone.ask(100)
    asked_s = alone.duo.clock.now
    for _ in range(100):
        short = alone.ask(4)
        came_s[short.request_id] = alone.duo.clock.now
        alone.duo.turn(0.01)
    num_waiting = alone.decode.admission.num_waiting
    alone.duo.settle()
    served = alone.served()
    passed_by = [one for one in served[: served.index(long.request_id)] if one in came_s]
    bound_s = make_policy(policy).overtaken_for_s(Work(long.request_id, 100, 0, 1))
    assert num_waiting > 50
    assert all(came_s[one] <= asked_s + bound_s for one in passed_by)
    assert (len(passed_by) == len(came_s)) == (policy == "spf")


def test_lengths_are_learned_from_what_ends_by_itself() -> None:
    """Answers that ran to their limit teach; one that was cancelled does not."""
    alone = _Alone(DecodeConfig())
    for _ in range(3):
        alone.ask(10, 5)
    cancelled = alone.ask(10, 100)
    for _ in range(30):
        alone.duo.turn()
    alone.decode.cancel(cancelled.request_id)
    alone.duo.settle()
    assert alone.decode.expected_output.error.num_samples == 3
    assert alone.decode.expected_output.error.covered == 1.0
