"""Small real tokenizers, trained in memory, one for each way in which models spell text."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer

from router.tokenization.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "das Café an der Straße, naïve façade 日本 日本",
    "a  b   c",
] * 4
SPECIALS = ["<unk>", "<s>", "</s>"]
BYTE_TOKENS = [f"<0x{value:02X}>" for value in range(256)]
WORD_BREAK = "\u2581"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\n"
    "[{{ message.role }}] {{ message.content }}{{ eos_token }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@cache
def byte_level() -> FastTokenizer:
    """GPT-2's kind: pieces of bytes."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fast.train_from_iterator(CORPUS, _trainer(350, SPECIALS, alphabet))
    fast.add_tokens([AddedToken("<think>", special=False)])
    return _with_bos(fast)


def _sentence_piece() -> FastTokenizer:
    """Pieces of characters with word breaks, and bytes for what has no piece; without a decoder."""
    fast = FastTokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    fast.train_from_iterator(CORPUS, _trainer(400, SPECIALS + BYTE_TOKENS, []))
    # Training registers byte tokens as special; in real models they are ordinary pieces.
    state = json.loads(fast.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIALS]
    return FastTokenizer.from_str(json.dumps(state))


@cache
def llama() -> FastTokenizer:
    """Llama's kind: a space is put before the text, and taken away again after decoding."""
    fast = _sentence_piece()
    fast.pre_tokenizer = None
    fast.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_BREAK), normalizers.Replace(" ", WORD_BREAK)])
    to_space = decoders.Replace(WORD_BREAK, " ")
    fast.decoder = decoders.Sequence([to_space, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return _with_bos(fast)


@cache
def gemma() -> FastTokenizer:
    """Gemma's kind: no space is added."""
    fast = _sentence_piece()
    fast.pre_tokenizer = None
    fast.normalizer = normalizers.Replace(" ", WORD_BREAK)
    fast.decoder = decoders.Sequence([decoders.Replace(WORD_BREAK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_bos(fast)


@cache
def metaspace() -> FastTokenizer:
    """Byte tokens and the Metaspace decoder, which takes the first word break away."""
    fast = _sentence_piece()
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return _with_bos(fast)


KINDS = {"byte-level": byte_level, "llama": llama, "gemma": gemma, "metaspace": metaspace}


@cache
def tokenizer(kind: str) -> Tokenizer:
    """One of `KINDS`, as a model directory gives it."""
    with TemporaryDirectory() as directory:
        write_model_files(Path(directory), KINDS[kind]())
        return Tokenizer.from_directory(directory)


def write_model_files(directory: Path, fast: FastTokenizer, **config: Any) -> None:
    """A directory's tokenizer files, with `config` over what tokenizer_config.json has otherwise."""
    fast.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE} | config
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def _trainer(vocab_size: int, specials: list[str], alphabet: list[str]) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )


def _with_bos(fast: FastTokenizer) -> FastTokenizer:
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return fast
