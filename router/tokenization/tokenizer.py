"""A model's tokenizer, read from its directory. May be used from any thread: nothing changes after it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from protocol.errors import BadRequest, ModelLoadError
from router.tokenization.chat_template import ChatTemplate, Messages
from router.tokenization.decoding import Decoding
from router.tokenization.model_files import (
    DEFAULT_TEMPLATE,
    TOOL_TEMPLATE,
    read_optional_json,
    special_tokens,
    stated_eos_ids,
    template_sources,
)


class Tokenizer:
    """Text to ids and back.

    `eos_token_ids` end a text or a chat turn; every id is below `vocab_size`; `decoding` is the decoder as a stream.
    """

    def __init__(
        self, fast: FastTokenizer, templates: Mapping[str, ChatTemplate], eos_token_ids: frozenset[int]
    ) -> None:
        self._fast = fast
        self._templates = dict(templates)
        self.eos_token_ids = eos_token_ids
        self.vocab_size = max(fast.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        # What the library pickles is the decoder's JSON; `to_str` would write out the whole vocabulary for it.
        self.decoding = Decoding.parse(json.loads(fast.decoder.__getstate__()) if fast.decoder else None)
        added = fast.get_added_tokens_decoder()
        self._added_ids = {token.content: token_id for token_id, token in added.items()}
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @classmethod
    def from_directory(cls, path: Path | str) -> Tokenizer:
        """Reads `tokenizer.json`, and beside it, where there are such files, what ends a text and the chat template.

        Raises `ModelLoadError` naming the file that is missing or malformed.
        """
        directory = Path(path)
        file = directory / "tokenizer.json"
        fast = _read_fast(file)
        config = read_optional_json(directory / "tokenizer_config.json")
        named = special_tokens(config)
        eos_ids = stated_eos_ids(directory)
        if (eos_id := fast.token_to_id(named.get("eos_token", ""))) is not None:
            eos_ids.add(eos_id)
        sources = template_sources(directory, config)
        try:
            templates = {name: ChatTemplate(source, named) for name, source in sources.items()}
            return cls(fast, templates, frozenset(eos_ids))
        except ModelLoadError as error:
            raise ModelLoadError(f"{directory}: {error.message}") from error

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`, with what the model wants around it unless `add_special_tokens` is False.

        Special tokens that the text spells out become their ids. Raises `BadRequest` for a text that UTF-8 cannot hold.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"the text holds half a surrogate pair at character {error.start}", param="prompt"
            ) from error
        # The batch call is the one that lets other threads run meanwhile; `fast` leaves out offsets, which nobody reads.
        return self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_offsets(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Where in `text` each of the ids that `encode` gives begins, in characters and in ascending order.

        A token that is part of a character begins where the character does; one that stands for nothing in the text, such
        as a start mark, where the token after it does.
        """
        encoding = self._fast.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        starts = []
        end = 0
        for (start, stop), is_added in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
            # Some encoders leave the space before a word out of its token's range; nothing else lies between ranges.
            starts.append(end if is_added else min(start, end))
            end = max(end, stop)
        return starts

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`. Ids that are no token add nothing."""
        return self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """How the vocabulary spells a token; None for an id that is none."""
        return self._fast.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def added_id(self, text: str) -> int | None:
        """The id of the token, special or not, that was added to the vocabulary for `text`; None when there is none."""
        return self._added_ids.get(text)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for in mid-text, perhaps part of a character; empty for no token."""
        token = self.token(token_id)
        return b"" if token is None else self.decoding.token_bytes(token)

    def is_special(self, token_id: int) -> bool:
        """Whether the token is left out of decoded text."""
        return token_id in self._special_ids

    @property
    def can_render_tools(self) -> bool:
        """Whether the model has a chat template that looks at the tools it is given."""
        template = self._template(is_for_tools=True)
        return template is not None and template.reads("tools")

    def chat_prompt(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the model's chat template makes of `messages`; to be encoded without special tokens.

        A model may have one template for chats with tools, or with turns that called some, and one for others. `variables`
        are further names that the template may know, such as `enable_thinking`. Raises `BadRequest` when the model has no
        template or the template refuses the messages.
        """
        template = self._template(is_for_tools=bool(tools) or any(map(_is_about_tools, messages)))
        if template is None:
            raise BadRequest("this model has no chat template: use /v1/completions", param="messages")
        given = {"tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        return template.render(messages, {**given, **(variables or {})})

    def _template(self, is_for_tools: bool) -> ChatTemplate | None:
        template = self._templates.get(TOOL_TEMPLATE) if is_for_tools else None
        return template or self._templates.get(DEFAULT_TEMPLATE)

    def encode_chat(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids of `chat_prompt`, with nothing added: the template has put every special token in its place."""
        text = self.chat_prompt(messages, tools, add_generation_prompt, variables)
        return self.encode(text, add_special_tokens=False)


def _is_about_tools(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def _read_fast(file: Path) -> FastTokenizer:
    if not file.is_file():
        raise ModelLoadError(f"{file} is missing; kvferry needs the tokenizer in this form")
    try:
        fast = FastTokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for every fault of the file
        raise ModelLoadError(f"{file} is no valid tokenizer: {error}") from error
    # Settings for training batches that some files carry: a prompt must be neither cut nor filled up.
    fast.no_truncation()
    fast.no_padding()
    return fast
