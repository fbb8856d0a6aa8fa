"""Reads prompts in chunks and ships their KV while the next chunk computes. Knows nothing of HTTP."""
