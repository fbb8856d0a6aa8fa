"""One engine step: a batch of plain values in, one sampled token for each slice that asks out.

Mixes prefill chunks and decodes in one forward pass. Owns the model and the cache's memory; who owns which block is the
scheduler's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention.interface import AttentionBackend, build_metadata
from engine.batch import SampledToken, SequenceSlice, StepBatch, StepResult
from engine.cuda_graphs import DecodeGraphs
from engine.decoder import Decoder
from engine.kv_cache import KvCache
from engine.model_config import ModelConfig
from engine.sampler import sample
from protocol.errors import BadRequest, KvferryError, PromptTooLong
from protocol.layout import KvLayout


class Engine:
    """A model, its KV cache and a way to attend. Belongs to one thread."""

    def __init__(
        self, decoder: Decoder, cache: KvCache, attention: AttentionBackend, graphs: DecodeGraphs | None = None
    ) -> None:
        self.cache = cache
        self._decoder = decoder
        self._attention = attention
        self._graphs = graphs

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

    def step(self, batch: StepBatch) -> StepResult:
        """Stores the KV of all new tokens and draws a token for each slice with `sampling`.

        Raises before anything is computed: `PromptTooLong` for a position outside the model's context, `BadRequest`
        for a token id outside its vocabulary, `KvferryError` for a batch that contradicts itself.
        """
        sampled = [part for part in batch.slices if part.sampling is not None]
        logits = self._run(batch, _last_rows(batch))
        if logits is None:
            return StepResult(())
        params = [part.sampling for part in sampled if part.sampling is not None]
        with torch.inference_mode():
            drawn = sample(logits, params, [part.end for part in sampled])
        tokens = zip(sampled, drawn, strict=True)
        return StepResult(tuple(SampledToken(part.request_id, *token) for part, token in tokens))

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Float32 logits `[T, vocab_size]` of all tokens of the batch, whose KV is stored as in `step`."""
        logits = self._run(batch, None)
        if logits is None:
            raise KvferryError("a batch without tokens has no logits")
        return logits

    def _run(self, batch: StepBatch, rows: list[int] | None) -> torch.Tensor | None:
        """Logits of `rows` (of all tokens if None), or None when there are none."""
        if not batch.slices:
            return None
        self._check(batch)
        device = self._decoder.device
        with torch.inference_mode():
            token_ids = torch.tensor([token for part in batch.slices for token in part.token_ids], device=device)
            metadata = build_metadata(batch, self.layout.block_size, device)
            # A batch whose every token is asked for (a decode) needs no selection.
            is_all = rows is None or len(rows) == batch.num_tokens
            if is_all and self._graphs is not None and self._graphs.can_run(metadata):
                return self._graphs.run(token_ids, metadata)
            attention = self._attention.begin(metadata, self.cache)
            wanted = None if is_all else torch.tensor(rows, dtype=torch.int64, device=device)
            hidden = self._decoder.hidden(token_ids, metadata.positions, attention, wanted)
            return self._decoder.logits(hidden) if hidden.shape[0] else None

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
        num_needed = self.layout.num_blocks_for(part.end)
        if len(part.block_ids) < num_needed:
            raise KvferryError(f"{who}: {part.end} positions need {num_needed} blocks, got {len(part.block_ids)}")
        if min(part.block_ids) < 0 or max(part.block_ids) >= self.num_blocks:
            raise KvferryError(f"{who}: a block id is outside the KV cache of {self.num_blocks} blocks")


def _last_rows(batch: StepBatch) -> list[int]:
    """The row of the last token of each slice that asks for the next one."""
    rows = []
    end = 0
    for part in batch.slices:
        end += part.num_tokens
        if part.sampling is not None:
            rows.append(end - 1)
    return rows
