"""A prefix cache's counters as the message of a worker's status."""

from __future__ import annotations

from engine.prefix_cache.cache import PrefixCache
from protocol import kvferry_worker_pb2 as pb


def prefix_status(cache: PrefixCache | None) -> pb.PrefixCacheStatus | None:
    """What a status says of the cache, as it is now; None of a worker that keeps no prefixes. Any thread may ask."""
    if cache is None:
        return None
    counters = cache.counters
    return pb.PrefixCacheStatus(
        num_blocks=cache.num_blocks,
        num_queries=counters.num_queries,
        num_query_tokens=counters.num_query_tokens,
        num_hit_tokens=counters.num_hit_tokens,
        num_stored_blocks=counters.num_stored_blocks,
        num_evicted_blocks=counters.num_evicted_blocks,
    )
