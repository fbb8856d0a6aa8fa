"""A tokenizer whose ids are bytes: id 65 is `A`. Simple to reason about, and characters can be split into tokens."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from router.tokenization.tokenizer import Tokenizer

EOS_ID = 256
EOS_TEXT = "<|end|>"
VOCAB_SIZE = 257
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def _byte_symbols() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level vocabularies, in the order of the bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def write_byte_tokenizer(directory: Path) -> None:
    """The files of a model directory that a tokenizer is read from."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = FastTokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS_TEXT, special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": EOS_TEXT, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": EOS_ID, "vocab_size": VOCAB_SIZE}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID}))


@cache
def byte_tokenizer() -> Tokenizer:
    """The tokenizer, read from files once a test run."""
    directory = Path(mkdtemp(prefix="kvferry-byte-tokenizer-"))
    write_byte_tokenizer(directory)
    return Tokenizer.from_directory(directory)
