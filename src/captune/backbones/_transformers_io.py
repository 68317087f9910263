"""Loading from the Hugging Face hub or a local folder, with errors that a person can act on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from captune.errors import ModelError, nearest


def quiet() -> None:
    """Keep transformers' own progress bars and advice off the screen."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def load_config(name: str, supported: tuple[str, ...], known: tuple[str, ...] = ()) -> Any:
    """Return a model's configuration, or say what is missing or not supported."""
    from transformers import AutoConfig

    quiet()
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(_not_loaded(name, "config.json", error, known)) from error
    if config.model_type not in supported:
        raise ModelError(f"{name!r} is a {config.model_type!r} model; this source loads {', '.join(supported)} models.")
    return config


def load_model(model_class: Any, name: str) -> Any:
    """Return a model in fp32 from safetensors; weights that are missing or do not fit are an error."""
    import torch

    try:
        model, info = model_class.from_pretrained(
            name,
            dtype=torch.float32,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # safetensors, hub and shape errors have no common ancestor
        raise ModelError(_not_loaded(name, "model.safetensors", error, ())) from error
    missing = sorted(info.get("missing_keys", ())) + sorted(str(key) for key in info.get("mismatched_keys", ()))
    missing = [key for key in missing if not key.startswith("pooler.")]  # BERT and ViT heads that nothing here uses
    if missing:
        raise ModelError(
            f"The weights of {name!r} are incomplete: {len(missing)} tensors are missing or of a wrong shape, "
            f"first {missing[0]!r}. Download or save the model again."
        )
    return model


def load_tokenizer(name: str) -> Any:
    """Return a model's tokenizer."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises plain Exception for a damaged file
        raise ModelError(_not_loaded(name, "tokenizer.json", error, ())) from error


def load_image_settings(name: str) -> dict[str, Any]:
    """Return what preprocessor_config.json says, or an empty mapping where there is none."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError):
        return {}
    return dict(settings)


def _not_loaded(name: str, file: str, error: Exception, known: tuple[str, ...]) -> str:
    if Path(name).is_dir():
        return f"The folder {name!r} does not hold a usable {file}: {_first_line(error)}"
    hint = nearest(name, known)
    return (
        f"No model {name!r}: it is not a local folder, and {file} is neither in the local cache nor could it be "
        f"fetched from the hub.{hint} Check the name and the connection (HF_HUB_OFFLINE must not be 1 to download), "
        "or give a local folder: hf:path/to/folder."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
