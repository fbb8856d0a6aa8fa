"""Token ids to text, one at a time, as they are generated."""

from __future__ import annotations

from collections.abc import Set

from router.tokenization.tokenizer import Tokenizer


class Detokenizer:
    """The text of one answer. All texts from `push` and `finish` together are `tokenizer.decode` of all ids.

    A text is given when nothing that follows can change it: never half a character, never without its leading space.
    The cost of a token does not depend on how many there were. With `is_mid_text` the answer goes on with a text that
    other tokens began: the space before its first word stays, which decoders take away from the start of a text.
    Special tokens in `kept_ids` are never skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        is_mid_text: bool = False,
        kept_ids: Set[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._kept_ids = kept_ids
        self._stages = tokenizer.decoding.stages(is_mid_text)
        self._known_texts = tokenizer.decoding.texts
        self._is_at_rest = self._are_stages_at_rest()

    def push(self, token_id: int) -> str:
        """The text that is certain now, often empty. An id that is no token adds none, as in `Tokenizer.decode`."""
        if self._is_at_rest and (known := self._known_texts.get(token_id)) is not None:
            return known
        token = self._tokenizer.token(token_id)
        if token is None or (self._skips_special and self._is_skipped(token_id)):
            return ""
        was_at_rest = self._is_at_rest
        text = self._run([token], 0)
        self._is_at_rest = self._are_stages_at_rest()
        # Special tokens have a text for some answers only.
        if was_at_rest and self._is_at_rest and not self._tokenizer.is_special(token_id):
            self._known_texts[token_id] = text
        return text

    def finish(self) -> str:
        """The rest, an incomplete character as U+FFFD. After this the detokenizer is used up."""
        return "".join(self._run(stage.finish(), index + 1) for index, stage in enumerate(self._stages))

    def _is_skipped(self, token_id: int) -> bool:
        return self._tokenizer.is_special(token_id) and token_id not in self._kept_ids

    def _are_stages_at_rest(self) -> bool:
        return all(stage.is_at_rest for stage in self._stages)

    def _run(self, units: list[str], first_stage: int) -> str:
        for stage in self._stages[first_stage:]:
            units = [done for unit in units for done in stage.push(unit)]
        return "".join(units)
