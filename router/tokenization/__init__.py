"""Text to token ids and back, and chats to prompts.

Needs `tokenizers` and `jinja2` only; knows nothing of HTTP or of how a model is run.
"""
