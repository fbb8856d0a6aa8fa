"""The blocks of prompts that come, are computed and go in any order: found is what was computed, and all is given back."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import SequenceSlice
from engine.block_pool import BlockPool
from engine.prefix_cache.policy import PrefixCachePolicy
from prefill_worker.admission import Admission
from prefill_worker.prompt_blocks import PromptBlocks, prefixes_of
from prefill_worker.sequence import PrefillSequence, Submission
from protocol.errors import BadRequest, OutOfBlocks
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.request import GenerateRequest, StopRule
from protocol.ticket import Ticket
from protocol.wire_rule import WireCodec, WireRule
from scheduling.policies.choose import make_policy
from scheduling.policies.policy import Queue

BLOCK = 2
LAYOUT = KvLayout("model", 1, 1, 8, KvDtype.FLOAT32, BLOCK)
NUM_BLOCKS = 12


@dataclass
class Worker:
    """Blocks as a worker has them, without an engine: `written` says for each block which tokens it was computed after."""

    num_blocks: int = NUM_BLOCKS
    policy: PrefixCachePolicy | None = PrefixCachePolicy.ARC
    written: dict[int, tuple[int, ...]] = field(default_factory=dict)
    num_made: int = 0

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks)
        self.blocks = PromptBlocks(self.pool, LAYOUT, prefixes_of(self.pool, LAYOUT, self.policy))

    def submission(self, tokens: tuple[int, ...], **asked: object) -> Submission:
        """A prompt as it is handed in."""
        self.num_made += 1
        request = GenerateRequest(f"{self.num_made:032x}", tokens, StopRule(4), **asked)  # type: ignore[arg-type]
        return Submission(request, None, 60.0, chain=self.blocks.chain_of(request))

    def waiting(self, tokens: tuple[int, ...], **asked: object) -> PrefillSequence:
        """A prompt that has no blocks."""
        return self.submission(tokens, **asked).sequence(self.num_made, 0.0)

    def given(self, tokens: tuple[int, ...], **asked: object) -> PrefillSequence:
        """A prompt that has its blocks."""
        sequence = self.waiting(tokens, **asked)
        self.blocks.give(sequence)
        return sequence

    def compute(self, sequence: PrefillSequence, num_tokens: int) -> None:
        """The next tokens of a prompt, as far as it goes. What it takes for computed must be, by the same tokens."""
        assert sequence.table is not None
        tokens, table = sequence.request.prompt_token_ids, sequence.table.block_ids
        for number in range(sequence.num_cached // BLOCK):
            assert self.written[table[number]] == tokens[: (number + 1) * BLOCK]
        end = min(len(tokens), sequence.num_cached + num_tokens)
        part = SequenceSlice(sequence.request.request_id, tokens[sequence.num_cached : end], sequence.num_cached, table)
        for number in range(part.start // BLOCK, -(-end // BLOCK)):
            self.written[table[number]] = tokens[: min(end, (number + 1) * BLOCK)]
        sequence.num_cached = end
        self.blocks.keep(sequence, part)

    def serve(self, tokens: tuple[int, ...], **asked: object) -> int:
        """A prompt from beginning to end; how much of it was found."""
        sequence = self.given(tokens, **asked)
        self.compute(sequence, len(tokens))
        sequence.release()
        self.blocks.check_integrity()
        return sequence.num_cached_at_start


@pytest.mark.parametrize("policy", [*PrefixCachePolicy, None])
def test_what_was_computed_is_found(policy: PrefixCachePolicy | None) -> None:
    """Full blocks but for the last token; without a cache nothing, and nothing is named."""
    worker = Worker(policy=policy)
    prompts = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 3, 4), (1, 2, 9, 9, 9)]
    assert [worker.serve(one) for one in prompts] == ([0, 4, 2, 2] if policy else [0] * 4)
    assert (worker.submission((1, 2)).chain is None) is (policy is None)
    assert worker.pool.num_free == NUM_BLOCKS


def test_a_scored_prompt_finds_nothing_and_is_found() -> None:
    """All its logits are needed."""
    worker = Worker()
    assert [worker.serve((1, 2, 3, 4, 5), num_prompt_logprobs=scored) for scored in (0, 0, None)] == [0, 0, 4]


def test_queries_that_tell_the_importance_are_computed() -> None:
    """64 of them, or all there are: less is reused under such a ticket."""
    worker = Worker(num_blocks=200)
    tokens = tuple(range(100))
    worker.serve(tokens)
    request = worker.submission(tokens).request
    here = WorkerId("w", "1")
    rule = WireRule(WireCodec.CHANNEL, 0.5)
    ticket = Ticket(request.request_id, here, here, 1, (0,), 4096, 0, 100, 32, KvDtype.FLOAT32, 9.0, rule)
    for num_tokens, num_cached in ((100, 36), (66, 2), (65, 0), (1, 0)):
        sequence = worker.waiting(tokens[:num_tokens])
        sequence.ticket = ticket
        worker.blocks.give(sequence)
        assert sequence.num_cached == num_cached
        sequence.release()


def test_room_counts_what_is_found() -> None:
    """Blocks that others hold need no room, those that only the cache keeps do, since they are free until then."""
    worker = Worker(num_blocks=4)
    worker.serve((1, 2, 3, 4, 5))
    idle = worker.waiting((1, 2, 3, 4, 5, 6, 7))
    assert worker.blocks.num_needed(idle) == 4
    holder = worker.given((1, 2, 3, 4, 5))
    assert worker.blocks.num_needed(idle) == 2
    with pytest.raises(OutOfBlocks):
        worker.blocks.give(idle)
    assert idle.table is None
    holder.release()
    worker.blocks.give(idle)
    idle.release()
    worker.blocks.check_integrity()


def test_a_prompt_that_has_not_started_looks_again() -> None:
    """Its own blocks go for those that another has computed since; once it has started it keeps to its own."""
    worker = Worker()
    first, second = (worker.given((1, 2, 3, 4, 5, 6, 7)) for _ in range(2))
    assert not worker.blocks.look_again(second)
    for num_tokens, num_cached in ((2, 2), (1, 2), (4, 6)):
        worker.compute(first, num_tokens)
        worker.blocks.look_again(second)
        assert second.num_cached == second.num_cached_at_start == num_cached
    assert worker.pool.num_free == NUM_BLOCKS - 5
    worker.compute(second, 1)
    assert not worker.blocks.look_again(second)
    for one in (first, second):
        one.release()
    worker.blocks.check_integrity()
    assert worker.pool.num_free == NUM_BLOCKS


def test_a_token_that_fits_no_name_is_refused() -> None:
    """Before it waits."""
    with pytest.raises(BadRequest):
        Worker().submission((1, -1))


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [0, 1, 2]), ("spf", [2, 1, 0]), ("priority", [1, 2, 0])])
def test_the_line_counts_what_has_to_be_computed(policy: str, order: list[int]) -> None:
    """A long prompt whose beginning is cached goes before a shorter one under `spf`; requests bring their priority."""
    worker, rule = Worker(num_blocks=40), make_policy(policy)
    worker.serve(tuple(range(20)))
    line = Admission(rule, worker.blocks, worker.pool)
    asked = [((30, *range(9)), 2), ((30, *range(5)), 0), (tuple(range(21)), 1)]
    sequences = [line.add(worker.submission(tokens, priority=level), 0.0) for tokens, level in asked]
    assert [one.work.num_uncached for one in sequences] == [10, 6, 1]
    admitted = list(line.admit(Queue(line.line, [], 0.0), max_sequences=8))
    assert admitted == [sequences[number] for number in order]
    assert not line.waiting
    assert not len(line.line)


def test_the_first_that_does_not_fit_blocks_the_rest() -> None:
    """No more are admitted than may run, and none goes before one that waits for blocks."""
    worker = Worker()
    line = Admission(make_policy("fcfs"), worker.blocks, worker.pool)
    sequences = [line.add(worker.submission(tuple(range(n, 2 * n))), 0.0) for n in (4, 6, 20, 2)]
    queue = Queue(line.line, [], 0.0)
    assert list(line.admit(queue, max_sequences=0)) == []
    assert list(line.admit(queue, max_sequences=1)) == sequences[:1]
    assert list(line.admit(queue, max_sequences=8)) == sequences[1:2]
    assert list(line.waiting.values()) == sequences[2:]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(0, 3), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("compute"), st.integers(0, 7), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("go"), st.integers(0, 7), st.just(0), st.booleans()),
    ),
    max_size=60,
)


@given(steps=STEPS, policy=st.sampled_from(PrefixCachePolicy))
def test_nobody_reads_what_another_wrote_over(
    steps: list[tuple[str, int, int, bool]], policy: PrefixCachePolicy
) -> None:
    """Prompts of few tokens part everywhere and leave at any time, half computed or not: a found block always holds the KV of
    just these tokens, room is enough when it is said to be, and in the end all is free.
    """
    worker, running = Worker(policy=policy), list[PrefillSequence]()
    for what, number, amount, flag in steps:
        if what == "come":
            tokens = tuple((number >> (index // 4)) & 1 for index in range(amount))
            sequence = worker.waiting(tokens, num_prompt_logprobs=0 if flag and number == 3 else None)
            if worker.blocks.num_needed(sequence) <= worker.pool.num_free:
                worker.blocks.give(sequence)
                running.append(sequence)
        elif running:
            sequence = running[number % len(running)]
            if what == "go" or sequence.num_cached == sequence.request.num_prompt_tokens:
                running.remove(sequence)
                sequence.release()
                continue
            if flag:
                worker.blocks.look_again(sequence)
            worker.compute(sequence, amount)
        worker.blocks.check_integrity()
    for sequence in running:
        sequence.release()
    worker.blocks.check_integrity()
    assert worker.pool.num_free == NUM_BLOCKS
