"""Loading from the Hugging Face hub or a local folder, with errors that tell what to do."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from captune.core import registry
from captune.core.errors import ModelError, nearest
from captune.core.files import is_file, is_folder
from captune.core.restoring import quiet_loggers


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and advice of transformers and huggingface_hub."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as messages

    had_bars, hub_had_bars = messages.is_progress_bar_enabled(), not are_progress_bars_disabled()
    messages.disable_progress_bar()  # of both libraries
    try:
        with quiet_loggers("transformers", "huggingface_hub", level=logging.ERROR):
            yield
    finally:
        with warnings.catch_warnings():  # where an environment variable decides about the bars of the hub
            warnings.simplefilter("ignore")
            if had_bars:
                messages.enable_progress_bar()
            enable_progress_bars() if hub_had_bars else disable_progress_bars()


def local_path(name: str) -> str:
    """Expand `~`, which the shell does not do after `source:`."""
    return os.path.expanduser(name)  # noqa: PTH111 (without a home, it leaves the name as it is)


def files_of(name: str) -> list[Path]:
    """Return the files of a model in a local folder or in the cache of the hub; empty if it is in neither."""
    folder = Path(name)
    if name and not is_folder(folder):
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            config = try_to_load_from_cache(name, "config.json")
        except HFValidationError:
            return []
        if not isinstance(config, str):
            return []
        folder = Path(config).parent
    return sorted(path for path in folder.iterdir() if path.is_file()) if name else []


@cache
def hub_unreachable() -> bool:
    """Return whether the hub's address cannot be resolved; its client would retry every file for half a minute."""
    from huggingface_hub import constants

    if any(os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return False  # the proxy resolves the address
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return True
    return False


@quiet()
def load_config(name: str, supported: tuple[str, ...], known: tuple[str, ...] = ()) -> Any:
    """Return the configuration of a model of a supported type, or of any type if none is listed."""
    from transformers import AutoConfig

    if not name:
        example = f", for example {known[0]!r}" if known else ""
        raise ModelError(f"The model id is incomplete: expected a hub name or a folder after the colon{example}.")
    _check_folder(name)
    try:
        config = AutoConfig.from_pretrained(name, **_source(name))
    except (OSError, ValueError, KeyError, TypeError) as error:  # TypeError: a config.json that is not a mapping
        raise _not_loaded(name, "config.json", error, known) from error
    if supported and config.model_type not in supported:
        raise ModelError(
            f"{name!r} is a {config.model_type!r} model, expected {' or '.join(supported)}. Choose another model."
        )
    return config


@quiet()
def load_model(config: Any, name: str) -> Any:
    """Return a model in fp32 from safetensors; missing weights or weights of a wrong shape are an error."""
    import torch
    from transformers import AutoModel, __version__

    # Otherwise transformers asks a public service to convert pickled weights, which we would not load anyway.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    model_class = AutoModel._model_mapping.get(type(config), AutoModel)
    # A pooler that is missing from the files would be initialized at random and change the fingerprint.
    has_pooler = "add_pooling_layer" in signature(model_class.__init__).parameters
    dtype = "dtype" if tuple(int(part) for part in __version__.split(".")[:2]) >= (4, 56) else "torch_dtype"
    try:
        model, info = model_class.from_pretrained(
            name,
            **{dtype: torch.float32, **({"add_pooling_layer": False} if has_pooler else {})},
            use_safetensors=True,
            output_loading_info=True,
            **_source(name),
        )
    except Exception as error:  # safetensors, hub and shape errors have no common base class
        raise _not_loaded(name, "model.safetensors", error) from error
    missing = sorted(info.get("missing_keys", ())) + sorted(str(key) for key in info.get("mismatched_keys", ()))
    if missing:
        raise ModelError(
            f"The weights of {name!r} are incomplete: {len(missing)} tensors are missing or have a wrong shape, "
            f"the first is {missing[0]!r}. Download or save the model again."
        )
    return model


@quiet()
def load_tokenizer(name: str, vocabulary: int) -> Any:
    """Return a model's tokenizer, padding on the right, with at most `vocabulary` tokens."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **_source(name))
        # Special tokens do not count: transformers adds those that are missing from the files.
        n_tokens = len(tokenizer) - len(set(tokenizer.all_special_tokens))
    except Exception as error:  # the tokenizers library raises plain Exception for a damaged file
        raise _not_loaded(name, "tokenizer.json", error) from error
    if not 2 <= n_tokens <= vocabulary:
        raise ModelError(
            f"The tokenizer of {name!r} has {n_tokens} tokens, expected 2 to {vocabulary}. Put the tokenizer.json and "
            "tokenizer_config.json that the model was trained with next to its config.json."
        )
    tokenizer.padding_side = "right"  # as in training; SigLIP 2's tokenizer pads left by default
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@quiet()
def load_image_settings(name: str) -> dict[str, Any]:
    """Return the content of preprocessor_config.json, or an empty mapping if there is none."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        return dict(ImageProcessingMixin.get_image_processor_dict(name, **_source(name))[0])
    except (OSError, ValueError) as error:
        if is_file(Path(name, "preprocessor_config.json")):
            raise _not_loaded(name, "preprocessor_config.json", error) from error
        return {}


def with_absolute_folder(identifier: str) -> str:
    """Return an id whose name is absolute if it is a local folder; models in memory have no folder."""
    source, _, name = identifier.partition(":")
    is_local = bool(name) and not identifier.startswith(registry.IN_MEMORY) and is_folder(local_path(name))
    return f"{source}:{Path(local_path(name)).resolve()}" if is_local else identifier


def _source(name: str) -> dict[str, Any]:
    return {"trust_remote_code": False, "local_files_only": not is_folder(name) and hub_unreachable()}


def _check_folder(name: str) -> None:
    """Raise for a local folder without a usable model, before anything heavy is imported or read."""
    folder = Path(name)
    if is_file(folder):
        raise ModelError(
            f"{name!r} is a file; expected a folder with config.json and model.safetensors, as transformers writes it "
            "with model.save_pretrained(folder). For weights of open_clip, use open_clip:MODEL/FILE.safetensors."
        )
    if not is_folder(folder):
        return
    has_config = (folder / "config.json").is_file()
    if (folder / "dual_encoder.json").is_file() and not has_config:
        raise ModelError(f"The folder {name!r} contains a dual encoder. Load it as dual:{name}")
    if has_config and not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        found = f"only {pickled[0]!r}, a pickle, which can run arbitrary code when loaded" if pickled else "no weights"
        raise ModelError(
            f"The folder {name!r} contains {found}; expected model.safetensors. Save the model in this format with "
            "model.save_pretrained(folder)."
        )


def _not_loaded(name: str, file: str, error: Exception, known: tuple[str, ...] = ()) -> ModelError:
    if is_folder(name):
        cause = (str(error).strip() or type(error).__name__).splitlines()[0][:200].strip()
        return ModelError(
            f"The folder {name!r} does not contain a usable {file}: {cause} Download or save the model again, or check "
            "the path."
        )
    hint = "" if name in known else nearest(name, known)
    return ModelError(
        f"No model {name!r}: it is not a local folder, and {file} is neither in the local cache nor could it be "
        f"downloaded from the hub.{hint} Check the name and the connection (downloading needs HF_HUB_OFFLINE unset), "
        "or pass a local folder: hf:path/to/folder."
    )
