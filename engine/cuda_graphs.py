"""Decode steps replayed from CUDA graphs: one launch for the whole step instead of one for each of its operations.

A graph works on buffers of a fixed size, so batches are padded to the next of a few sizes, and block tables to the next
power of two. Graphs are captured when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.attention.interface import AttentionBackend, StepMetadata
from engine.decoder import Decoder
from engine.kv_cache import KvCache

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
NUM_WARM_UP_RUNS = 2

Run = Callable[[], torch.Tensor]
Capture = Callable[[Run], Run]
"""Turns a function over fixed buffers into a replay that writes its answer to the same tensor every time."""


class DecodeGraphs:
    """One captured step for each pair of (batch size, length of block tables) that has come up."""

    def __init__(self, decoder: Decoder, cache: KvCache, attention: AttentionBackend, capture: Capture) -> None:
        self._decoder = decoder
        self._cache = cache
        self._attention = attention
        self._capture = capture
        self._graphs: dict[tuple[int, int], tuple[_Buffers, Run]] = {}

    def can_run(self, metadata: StepMetadata) -> bool:
        """Whether a graph covers this step: one new token for each of not too many sequences."""
        return metadata.is_decode_only and metadata.num_sequences <= BATCH_SIZES[-1]

    def run(self, token_ids: torch.Tensor, metadata: StepMetadata) -> torch.Tensor:
        """Float32 logits `[S, vocab_size]`; valid until the next run."""
        num_sequences, num_columns = metadata.block_tables.shape
        batch_size = next(size for size in BATCH_SIZES if size >= num_sequences)
        padded_columns = 1 << (num_columns - 1).bit_length()
        graph = self._graphs.get((batch_size, padded_columns))
        if graph is None:
            buffers = _Buffers.empty(batch_size, padded_columns, token_ids.device)
            buffers.fill(token_ids, metadata)
            graph = (buffers, self._capture(lambda: self._forward(buffers)))
            self._graphs[batch_size, padded_columns] = graph
        buffers, replay = graph
        buffers.fill(token_ids, metadata)
        return replay()[:num_sequences]

    def _forward(self, buffers: _Buffers) -> torch.Tensor:
        batch_size, num_columns = buffers.block_tables.shape
        metadata = StepMetadata(
            positions=buffers.positions,
            slots=buffers.slots,
            block_tables=buffers.block_tables,
            query_starts=tuple(range(batch_size + 1)),
            context_lens=(num_columns * self._cache.layout.block_size,) * batch_size,
        )
        attention = self._attention.begin(metadata, self._cache)
        return self._decoder.logits(self._decoder.hidden(buffers.token_ids, buffers.positions, attention, None))


@dataclass(frozen=True, slots=True)
class _Buffers:
    """The inputs of one graph, at fixed addresses."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor

    @classmethod
    def empty(cls, batch_size: int, num_columns: int, device: torch.device) -> _Buffers:
        """Zeros of the graph's size."""

        def row() -> torch.Tensor:
            return torch.zeros(batch_size, dtype=torch.int64, device=device)

        return cls(row(), row(), row(), torch.zeros(batch_size, num_columns, dtype=torch.int64, device=device))

    def fill(self, token_ids: torch.Tensor, metadata: StepMetadata) -> None:
        """Copies a step in. Spare rows repeat the last sequence: they store the same KV twice, which harms nobody."""
        num_sequences, num_columns = metadata.block_tables.shape
        pairs = (
            (self.token_ids, token_ids),
            (self.positions, metadata.positions),
            (self.slots, metadata.slots),
            (self.block_tables[:, :num_columns], metadata.block_tables),
        )
        for buffer, values in pairs:
            buffer[:num_sequences] = values
            buffer[num_sequences:] = values[-1]
        self.block_tables[:, num_columns:] = 0


def cuda_capture() -> Capture:
    """Captures real CUDA graphs, which share one pool of memory since only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Run) -> Run:
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Libraries allocate and choose kernels in the first runs, which a capture does not allow.
            for _ in range(NUM_WARM_UP_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            answer = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return answer

        return replay

    return capture
