"""Lands KV, runs continuous batching and streams tokens; a whole engine, so that it can also read prompts itself."""
