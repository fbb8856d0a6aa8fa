"""The `tokenizer.json` and `tokenizer_config.json` that a GGUF file's vocabulary amounts to.

Two kinds: byte-level BPE (`gpt2`), whose way of splitting text is named by `tokenizer.ggml.pre`, and SentencePiece
(`llama`), whose merges are recovered from the scores. A way of splitting that is not known here is an error: a wrong
one would give other tokens than the model was trained on, and worse text, without a word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.checkpoint.gguf_file import GgufFile
from protocol.errors import ModelLoadError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Token types as GGUF numbers them."""

_WORD_BREAK = "\u2581"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2_SPLIT = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_SPLITS = {"llama-bpe": _LLAMA3_SPLIT, "qwen2": _QWEN2_SPLIT, "deepseek-r1-qwen": _QWEN2_SPLIT}
_DEFAULT_ISOLATED = (r"[\p{P}\$\+<=>\^~\|]+", r"\p{N}+", r"[0-9][0-9][0-9]")
_DEFAULT_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def write_tokenizer(file: GgufFile, directory: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`. Raises `ModelLoadError` for a kind that is not known."""
    tokens: list[str] = file.field("tokenizer.ggml.tokens")
    kinds: list[int] = file.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise ModelLoadError(f"{file.path}: {len(tokens)} tokens, but {len(kinds)} token types")
    model = file.field("tokenizer.ggml.model")
    try:
        if model == "gpt2":
            tokenizer = _byte_level(file, tokens)
        elif model == "llama":
            tokenizer = _sentence_piece(file, tokens, kinds)
        else:
            raise ModelLoadError(f"{file.path}: tokenizer {model!r} is not supported; kvferry reads gpt2 and llama")
    except ValueError as error:
        raise ModelLoadError(f"{file.path}: the tokenizer cannot be built: {error}") from error
    _add_whole_tokens(tokenizer, tokens, kinds)
    config = _tokenizer_config(file, tokens)
    _add_ends(tokenizer, config)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = file.get("tokenizer.ggml.pre", "default")
    merges = [_pair(file, merge) for merge in file.field("tokenizer.ggml.merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    # Llama 3 takes a word that is in the vocabulary whole, whatever its merges say.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(file, pre)
    tokenizer.decoder = decoders.ByteLevel()
    if _SPLITS.get(pre) is _QWEN2_SPLIT:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _pair(file: GgufFile, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelLoadError(f"{file.path}: {merge!r} in tokenizer.ggml.merges is not a pair")
    return left, right


def _pre_tokenizer(file: GgufFile, pre: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre in _SPLITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_SPLITS[pre]), "isolated"), to_bytes])
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if pre == "gpt-2":
        return words
    if pre == "default":
        punctuation, numbers, triples = (pre_tokenizers.Split(Regex(each), "isolated") for each in _DEFAULT_ISOLATED)
        split_words = pre_tokenizers.Split(Regex(_DEFAULT_WORDS), "isolated")
        return pre_tokenizers.Sequence([punctuation, split_words, numbers, triples, to_bytes])
    known = ", ".join(sorted([*_SPLITS, "smollm", "gpt-2", "default"]))
    raise ModelLoadError(f"{file.path}: tokenizer.ggml.pre is {pre!r}, which is not supported; kvferry reads {known}")


def _sentence_piece(file: GgufFile, tokens: list[str], kinds: list[int]) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    scores = file.get("tokenizer.ggml.scores", [0.0] * len(tokens))
    unknown = file.get("tokenizer.ggml.unknown_token_id", 0)
    merges = _merges_by_score(tokens, kinds, scores)
    has_bytes = "<0x00>" in vocab
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=has_bytes)
    )
    to_breaks = normalizers.Replace(" ", _WORD_BREAK)
    to_text = [decoders.Replace(_WORD_BREAK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_WORD_BREAK), to_breaks])
        to_text.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = to_breaks
    tokenizer.decoder = decoders.Sequence(to_text)
    return tokenizer


def _merges_by_score(tokens: list[str], kinds: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a normal token together from two others, best score first, as SentencePiece merges."""
    ids = {token: index for index, token in enumerate(tokens)}
    order = [index for index, kind in enumerate(kinds) if kind == NORMAL]
    order.sort(key=lambda index: (-scores[index], index))
    merges = []
    for index in order:
        token = tokens[index]
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in pairs if left in ids and right in ids]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Tokens found whole in the text and never put together from parts: control (special) and user-defined ones."""
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (UNKNOWN, CONTROL):
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])


def _tokenizer_config(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    is_sentence_piece = file.field("tokenizer.ggml.model") == "llama"
    # llama.cpp's own defaults for files that do not say.
    is_llama = is_sentence_piece or file.get("tokenizer.ggml.pre") == "llama-bpe"
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": file.get("tokenizer.ggml.add_bos_token", is_llama),
        "add_eos_token": file.get("tokenizer.ggml.add_eos_token", False),
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.field(f"{file.architecture}.context_length"),
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = file.get(f"tokenizer.ggml.{theirs}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise ModelLoadError(f"{file.path}: tokenizer.ggml.{theirs}_token_id is {index} of {len(tokens)} tokens")
        config[f"{ours}_token"] = tokens[index]
    if template := file.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def _add_ends(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Makes the tokenizer put the beginning and end tokens around a text, as far as the model wants them."""
    bos = config.get("bos_token") if config["add_bos_token"] else None
    eos = config.get("eos_token") if config["add_eos_token"] else None
    ends = [token for token in (bos, eos) if token is not None]
    if ends:
        single = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
        pairs = [(token, tokenizer.token_to_id(token)) for token in ends]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=pairs)
