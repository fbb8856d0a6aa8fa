"""One engine step: a batch of plain values in, one sampled token for each draw out; scores and importance on request.

Mixes prefill chunks and decodes in one forward pass. Owns the model and the cache's memory; who owns which block is the
scheduler's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.attention.importance import ObservedAttention
from engine.attention.interface import AttentionBackend, StepAttention, build_metadata
from engine.batch import Draw, SampledToken, SequenceSlice, StepBatch, StepResult, TokenImportance
from engine.cuda_graphs import DecodeGraphs
from engine.decoder import Decoder
from engine.draw_plan import DrawPlan, plan_draws
from engine.grammar import GrammarBook
from engine.kv_cache import KvCache
from engine.logit_rules import RuledRow, changed_logits, check_bias, has_rules, ruled_row
from engine.logprobs import score
from engine.model_config import ModelConfig
from engine.sampler import ChangedRows, sample
from protocol.errors import BadRequest, KvferryError, PromptTooLong
from protocol.layout import KvLayout
from protocol.request import PromptLogprobs, SamplingParams


class Engine:
    """A model, its KV cache and a way to attend. Belongs to one thread; only its properties and checks are for all.

    Without `grammars` it refuses draws that follow one.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KvCache,
        attention: AttentionBackend,
        graphs: DecodeGraphs | None = None,
        grammars: GrammarBook | None = None,
    ) -> None:
        self.cache = cache
        self._decoder = decoder
        self._attention = attention
        self._graphs = graphs
        self._grammars = grammars or GrammarBook(None, decoder.config.vocab_size, decoder.config.eos_token_ids)

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self._decoder.config

    @property
    def layout(self) -> KvLayout:
        """The layout of the KV cache."""
        return self.cache.layout

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self.cache.num_blocks

    @property
    def max_tokens_per_sequence(self) -> int:
        """Positions that one sequence can have: the model's context or the whole cache, whichever is smaller."""
        return min(self.config.max_position_embeddings, self.num_blocks * self.layout.block_size)

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raises `BadRequest` for a token id outside the vocabulary; so does `step`, but for the whole batch."""
        if min(token_ids) < 0 or max(token_ids) >= self.config.vocab_size:
            raise BadRequest(f"a token id is outside the vocabulary of {self.config.vocab_size}", param="prompt")

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Raises `BadRequest` for parameters that no step can follow: a bias outside the vocabulary, a grammar that cannot
        be compiled for it. Any thread may call it; a grammar that is new here takes a fraction of a second.
        """
        check_bias(sampling, self.config.vocab_size)
        if sampling.grammar:
            self._grammars.check(sampling.grammar)

    def copy_block(self, source: int, target: int) -> None:
        """Copies K and V of a block in all layers, whether or not all of it was written."""
        if not (0 <= source < self.num_blocks and 0 <= target < self.num_blocks):
            raise KvferryError(f"cannot copy block {source} to {target} in a KV cache of {self.num_blocks} blocks")
        self.cache.copy_block(source, target)

    def step(self, batch: StepBatch) -> StepResult:
        """Stores the KV of all new tokens, draws a token for each draw, scores the prompts of slices with `scoring`, and
        looks at the attention of slices that want importance.

        Raises before anything is computed: `PromptTooLong` for a position outside the model's context, `BadRequest`
        for a token id outside its vocabulary, `KvferryError` for a batch that contradicts itself. A draw that cannot be
        made because of its own parameters is one of the result's failures and disturbs no other request.
        """
        if not batch.slices:
            return StepResult(())
        self._check(batch)
        plan = plan_draws(batch, self._rule)
        with torch.inference_mode():
            done = self._run(batch, plan.rows, _scored_rows(batch))
            tokens = () if done.logits is None else self._draw(plan, done.logits)
            return StepResult(tokens, self._score(batch, done.hidden), plan.failures, done.importance)

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Float32 logits `[T, vocab_size]` of all tokens of the batch, whose KV is stored as in `step`."""
        self._check(batch)
        with torch.inference_mode():
            logits = self._run(batch, None, []).logits if batch.slices else None
        if logits is None:
            raise KvferryError("a batch without tokens has no logits")
        return logits

    def _run(self, batch: StepBatch, rows: list[int] | None, scored: list[int]) -> _Computed:
        """Logits of `rows` (of all tokens if None), and the hidden states of the rows in `scored`, whose logits together
        may be more than memory holds.
        """
        device = self._decoder.device
        token_ids = torch.tensor([token for part in batch.slices for token in part.token_ids], device=device)
        metadata = build_metadata(batch, self.layout.block_size, device)
        # A batch whose every token is asked for (a decode) needs no selection.
        is_all = rows is None or (len(rows) == batch.num_tokens and not scored)
        watched = [index for index, part in enumerate(batch.slices) if part.wants_importance]
        if is_all and not watched and self._graphs is not None and self._graphs.can_run(metadata):
            return _Computed(self._graphs.run(token_ids, metadata))
        attention: StepAttention = self._attention.begin(metadata, self.cache)
        if watched:
            attention = observed = ObservedAttention(attention, self.cache, self.config, metadata, watched)
        wanted = None if is_all else torch.tensor([*(rows or ()), *scored], dtype=torch.int64, device=device)
        hidden = self._decoder.hidden(token_ids, metadata.positions, attention, wanted)
        num_drawn = hidden.shape[0] - len(scored)
        logits = self._decoder.logits(hidden[:num_drawn]) if num_drawn else None
        importance = observed.importance() if watched else {}
        named = {batch.slices[index].request_id: found for index, found in importance.items()}
        return _Computed(logits, hidden[num_drawn:], named)

    def _rule(self, request_id: str, draw: Draw) -> RuledRow | None:
        if not has_rules(draw):
            return None
        allowed = self._grammars.allowed(request_id, draw) if draw.sampling.grammar else None
        return ruled_row(draw, allowed, self.config.vocab_size)

    def _draw(self, plan: DrawPlan, logits: torch.Tensor) -> tuple[SampledToken, ...]:
        if plan.has_shared_rows:
            logits = logits[torch.tensor(plan.sources, device=logits.device)]
        changed = ChangedRows(list(plan.ruled), changed_logits(logits, plan.ruled)) if plan.ruled else None
        params = [draw.sampling for _, draw in plan.draws]
        drawn = sample(logits, params, [part.end for part, _ in plan.draws], changed)
        return tuple(
            SampledToken(part.request_id, token, logprobs, draw.choice)
            for (part, draw), (token, logprobs) in zip(plan.draws, drawn, strict=True)
        )

    def _score(self, batch: StepBatch, hidden: torch.Tensor | None) -> dict[str, PromptLogprobs]:
        found: dict[str, PromptLogprobs] = {}
        first = 0
        for part in batch.slices:
            if part.scoring is not None:
                targets = part.scoring.targets
                rows = hidden[first : first + len(targets)] if hidden is not None else None
                found[part.request_id] = (
                    () if rows is None else tuple(score(self._decoder.logits, rows, targets, part.scoring.num_top))
                )
                first += len(targets)
        return found

    def _check(self, batch: StepBatch) -> None:
        if len({part.request_id for part in batch.slices}) != len(batch.slices):
            raise KvferryError("a step batch holds two slices of one request")
        for part in batch.slices:
            self._check_slice(part)

    def _check_slice(self, part: SequenceSlice) -> None:
        who = f"request {part.request_id}"
        if part.num_tokens < 1 or part.start < 0:
            raise KvferryError(f"{who}: a slice needs at least one token and a position of 0 or more")
        if part.end > self.config.max_position_embeddings:
            limit = self.config.max_position_embeddings
            raise PromptTooLong(f"{who}: position {part.end - 1} is outside the model's context of {limit} tokens")
        if min(part.token_ids) < 0 or max(part.token_ids) >= self.config.vocab_size:
            raise BadRequest(f"{who}: a token id is outside the vocabulary of {self.config.vocab_size}", param="prompt")
        if part.scoring is not None:
            self._check_targets(part, part.scoring.targets)
        num_needed = self.layout.num_blocks_for(part.end)
        if len(part.block_ids) < num_needed:
            raise KvferryError(f"{who}: {part.end} positions need {num_needed} blocks, got {len(part.block_ids)}")
        if min(part.block_ids) < 0 or max(part.block_ids) >= self.num_blocks:
            raise KvferryError(f"{who}: a block id is outside the KV cache of {self.num_blocks} blocks")

    def _check_targets(self, part: SequenceSlice, targets: Sequence[int]) -> None:
        if len(targets) > part.num_tokens:
            raise KvferryError(f"request {part.request_id}: {len(targets)} targets for {part.num_tokens} tokens")
        if targets:
            self.check_tokens(targets)


@dataclass(frozen=True, slots=True)
class _Computed:
    """What a forward pass leaves: `logits` (None when none were asked for), hidden states of scored rows, importance."""

    logits: torch.Tensor | None
    hidden: torch.Tensor | None = None
    importance: dict[str, TokenImportance] = field(default_factory=dict)


def _scored_rows(batch: StepBatch) -> list[int]:
    """The rows of the tokens that are followed by a target, slice by slice."""
    rows: list[int] = []
    start = 0
    for part in batch.slices:
        if part.scoring is not None:
            rows += range(start, start + len(part.scoring.targets))
        start += part.num_tokens
    return rows
