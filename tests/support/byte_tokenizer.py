"""A tokenizer whose ids are bytes: id 65 is `A`. Simple to reason about, and characters can be split into tokens."""

from __future__ import annotations

import atexit
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

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

TOOL_CALL_WRITERS = {
    "hermes": "<tool_call>\n{{ text }}\n</tool_call>{{ '' if loop.last else '\n' }}",
    "llama": "{{ text | replace('arguments', 'parameters', 1) }}",
    "mistral": (
        '{% if loop.first %}[TOOL_CALLS] [{% endif %}{{ text[:-1] }}, "id": "{{ call.id }}"}'
        "{% if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
        "{% if loop.last %}]{% else %}, {% endif %}"
    ),
    "unknown": "<call>{{ text }}</call>CALL {{ call.function.name }} WITH {{ call.function.arguments }}",
}
"""What tool templates of several kinds write for the call `text`, a JSON object with name and arguments."""
MARKERS = ("[TOOL_CALLS]", "<|python_tag|>")
"""Special tokens of the tokenizers with tools, from id 257 on."""


def tool_template(kind: str) -> str:
    """`CHAT_TEMPLATE`, with tools, calls of tools and their results."""
    return (
        "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
        "{% for call in message['tool_calls'] %}"
        "{% set text = {'name': call.function.name, 'arguments': call.function.arguments} | tojson %}"
        + TOOL_CALL_WRITERS[kind]
        + "{% endfor %}{% if message['tool_call_id'] %} for {{ message['tool_call_id'] }}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )


def _byte_symbols() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level vocabularies, in the order of the bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def write_byte_tokenizer(directory: Path, template: str = CHAT_TEMPLATE, markers: Sequence[str] = ()) -> None:
    """The files of a model directory that a tokenizer is read from; `markers` become special tokens."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = FastTokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (EOS_TEXT, *markers)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": EOS_TEXT, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(
        json.dumps({"eos_token_id": EOS_ID, "vocab_size": VOCAB_SIZE + len(markers)})
    )
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID}))


@cache
def byte_tokenizer() -> Tokenizer:
    """The tokenizer, read from files once a test run."""
    directory = _until_exit("kvferry-byte-tokenizer-")
    write_byte_tokenizer(directory)
    return Tokenizer.from_directory(directory)


@cache
def tool_tokenizer(kind: str) -> Tokenizer:
    """The same with a template that knows tools, of one of the kinds in `TOOL_CALL_WRITERS`."""
    return Tokenizer.from_directory(tool_directory(kind))


@cache
def tool_directory(kind: str) -> Path:
    """The model directory of `tool_tokenizer`."""
    directory = _until_exit("kvferry-tool-tokenizer-")
    write_byte_tokenizer(directory, tool_template(kind), MARKERS)
    return directory


def _until_exit(prefix: str) -> Path:
    """A directory that goes with this process."""
    directory = TemporaryDirectory(prefix=prefix)
    atexit.register(directory.cleanup)
    return Path(directory.name)
