"""The vocabulary that grammars are matched against, read from a model directory. Knows nothing of grammars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from engine.checkpoint.config_file import read_json
from protocol.errors import BadRequest, ModelLoadError

_PARAM = "response_format"


def load_vocabulary(directory: Path | None, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The tokens of `tokenizer.json`, of logits with `vocab_size` entries.

    An answer ends with one of `eos_token_ids` or with the `eos_token` of tokenizer_config.json. Takes about a second for
    a large vocabulary. Raises `BadRequest` when grammars are impossible with this model, `ModelLoadError` when a file
    cannot be read.
    """
    path = None if directory is None else directory / "tokenizer.json"
    if path is None or not path.is_file():
        raise BadRequest("this model comes without tokenizer.json: it can follow no grammar or schema", param=_PARAM)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises this very class
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    ends = _ends(tokenizer, path.with_name("tokenizer_config.json"), eos_token_ids)
    if not ends:
        raise BadRequest("this model names no token that ends a text: it can follow no grammar", param=_PARAM)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    try:
        return LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=ends)
    except ValueError as error:
        raise BadRequest(f"this model's tokenizer.json cannot be used for grammars: {error}", param=_PARAM) from error


def _ends(tokenizer: Tokenizer, config_path: Path, eos_token_ids: Sequence[int]) -> list[int]:
    """Ids of the tokens that end a text, each once, as far as the tokenizer knows them."""
    named = read_json(config_path).get("eos_token") if config_path.is_file() else None
    # Older files hold the token with its properties.
    text = named.get("content") if isinstance(named, dict) else named
    own = tokenizer.token_to_id(text) if isinstance(text, str) else None
    ids = [*eos_token_ids, *([] if own is None else [own])]
    return [token for token in dict.fromkeys(ids) if token >= 0 and tokenizer.id_to_token(token) is not None]
