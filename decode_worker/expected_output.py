"""How long the answers of a decode worker are expected to be: predicted when they begin to wait, learned when they end.

What another worker began of an answer counts as output here too. Does not know who is served first because of it.
"""

from __future__ import annotations

from decode_worker.sequence import DecodeSequence
from protocol.request import GenerateRequest
from scheduling.output_length import LengthError, OutputLengths


class ExpectedOutput:
    """Predictions for the one model of a worker, named by `model`. `error` may be asked for on any thread."""

    def __init__(self, model: str) -> None:
        self.lengths = OutputLengths()
        self._model = model

    @property
    def error(self) -> LengthError:
        """How far off predictions were so far."""
        return self.lengths.error(self._model)

    def predict(self, request: GenerateRequest) -> int:
        """Tokens that one answer of a request will have from here on, at least 1."""
        num_begun = request.num_continued
        max_tokens = num_begun + request.stop.max_tokens
        num_prompt = request.num_prompt_tokens - num_begun
        return self.lengths.predict(self._model, num_prompt, max_tokens, num_begun) - num_begun

    def learn(self, sequence: DecodeSequence) -> None:
        """An answer has ended by itself or at its limit. What was predicted in its midst is no test of the predictions."""
        num_begun = sequence.request.num_continued
        self.lengths.learn(
            self._model,
            sequence.request.num_prompt_tokens - num_begun,
            num_begun + sequence.num_generated,
            None if num_begun else sequence.num_predicted_output,
        )
