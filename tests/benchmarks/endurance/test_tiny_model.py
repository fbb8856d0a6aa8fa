"""The tiny model on disk: equal seeds, equal files, and a tokenizer that has text for every id."""

from pathlib import Path

from benchmarks.endurance.tiny_model import EOS_ID, VOCAB_SIZE, write_tiny_model
from router.tokenization.tokenizer import Tokenizer


def test_a_seed_determines_the_weights(tmp_path: Path) -> None:
    """The same again for the same seed, others for another."""
    weights = [
        (write_tiny_model(tmp_path / name, seed) / "model.safetensors").read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert weights[0] == weights[1] != weights[2]


def test_every_id_that_is_drawn_has_text(tmp_path: Path) -> None:
    """Ids above those of the bytes are pairs of letters."""
    tokenizer = Tokenizer.from_directory(write_tiny_model(tmp_path / "model"))
    assert tokenizer.vocab_size == VOCAB_SIZE
    texts = {tokenizer.decode([token_id]) for token_id in range(256, EOS_ID)}
    assert len(texts) == EOS_ID - 256
    assert all(len(text) == 2 and text.isalpha() for text in texts)
