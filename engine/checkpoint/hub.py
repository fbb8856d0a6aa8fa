"""Fetching a model from the Hugging Face Hub into the Hub's own cache."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from engine.checkpoint.convert import Progress
from engine.checkpoint.demo_model import ALIAS
from protocol.errors import ModelLoadError

WANTED_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "chat_template*",
    "*.safetensors",
    "*.safetensors.index.json",
]


def fetch_from_hub(repository: str, progress: Progress) -> Path:
    """The local snapshot of the Hub repository `org/name`: configuration, tokenizer and safetensors only.

    Raises `ModelLoadError` in one sentence: refused by the Hub (unknown or gated), or the Hub cannot be reached.
    """
    progress(f"Fetching {repository} from the Hugging Face Hub, unless it is here already.")
    try:
        return Path(snapshot_download(repository, allow_patterns=WANTED_FILES))
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelLoadError(
            f"the Hub does not give {repository}: {reason}; check the name, and HF_TOKEN for gated models"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise ModelLoadError(
            f"{repository} is no directory here and the Hugging Face Hub cannot be reached: download it on a machine "
            f"that can and pass the directory, or use the alias {ALIAS}"
        ) from error
