"""KV of earlier prompts, kept for those that begin alike: which blocks, under which names, and which go first.

`cache.PrefixCache` keeps full blocks of an `engine.block_pool.BlockPool` that nobody else holds until there is need of room.
Knows names and integers only: neither tensors nor requests.
"""
