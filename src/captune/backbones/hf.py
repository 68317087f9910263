"""CLIP, SigLIP and SigLIP 2 models in transformers' format, from the Hugging Face hub or a local folder."""

from __future__ import annotations

import logging
import math
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone, TextTower, Tokens, Tower, local_path, scale_of
from captune.core import registry
from captune.core.errors import ModelError, damaged_model, nearest
from captune.core.files import is_file, is_folder
from captune.data.views import Preprocessing, Resample

SUPPORTED = ("clip", "siglip", "siglip2")
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESAMPLE: dict[int, Resample] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def entries_of(model: Any) -> list[nn.Module]:
    """Return what tokens enter at each depth of a transformer; CLIP's for images has a norm before its first layer."""
    encoder = model.encoder if hasattr(model, "encoder") else model
    layers = encoder.layer if hasattr(encoder, "layer") else encoder.layers
    return [getattr(model, "pre_layrnorm", layers[0]), *layers[1:]]


def _patches(model: Any, pixels: Tensor) -> tuple[Tensor, None, Tensor]:
    """Return what the flexible SigLIP 2 models expect: the image cut into patches, no mask, and their number."""
    images, channels, height, width = pixels.shape
    size = int(model.config.patch_size)
    grid = pixels.reshape(images, channels, height // size, size, width // size, size)
    patches = grid.permute(0, 2, 4, 3, 5, 1).reshape(images, -1, channels * size * size)
    return patches, None, torch.tensor([[height // size, width // size]]).expand(images, 2)


class HuggingFace(Backbone):
    """A transformers CLIP, SigLIP or SigLIP 2 model."""

    source: ClassVar[str] = "hf"
    supported: ClassVar[tuple[str, ...]] = SUPPORTED
    """Types of models, with texts; any type without texts if empty."""
    examples: ClassVar[tuple[str, ...]] = (
        "openai/clip-vit-base-patch32",
        "openai/clip-vit-base-patch16",
        "openai/clip-vit-large-patch14",
        "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
        "google/siglip-base-patch16-224",
        "google/siglip2-base-patch16-224",
    )

    def __init__(self, identifier: str, model: Any, preprocessing: Preprocessing, tokenizer: Any = None) -> None:
        self.identifier, self.model, self.preprocessing, self.tokenizer = identifier, model, preprocessing, tokenizer
        self.is_clip = model.config.model_type == "clip"
        text, vision = model.text_model, model.vision_model
        heads = (model.visual_projection, model.text_projection) if self.is_clip else (nn.Identity(), nn.Identity())
        is_flexible = isinstance(getattr(vision.embeddings, "patch_embedding", None), nn.Linear)

        def encode_image(pixels: Tensor, mask: Tensor | None) -> Tensor:
            return heads[0](vision(*(_patches(vision, pixels) if is_flexible else (pixels,))).pooler_output)

        def encode_text(ids: Tensor, mask: Tensor | None) -> Tensor:
            # No mask: CLIP's texts are causal, so padding after the end is not seen; SigLIP was trained to see it.
            return heads[1](text(ids).pooler_output)

        self.image_tower = Tower(encode_image, int(vision.config.hidden_size), entries_of(vision))
        self.text_tower = TextTower(
            encode_text,
            int(text.config.hidden_size),
            entries_of(text),
            words=text.embeddings.token_embedding,
            positions=lambda: text.embeddings.position_embedding.weight,
            prompt_start=int(self.is_clip),
            padding_matters=not self.is_clip,
        )
        self.embed_dim = int(model.config.projection_dim if self.is_clip else model.config.text_config.projection_size)
        self.longest_text = int(model.config.text_config.max_position_embeddings)
        self.logit_scale = scale_of(model.logit_scale.item(), identifier)
        self.freeze()

    @classmethod
    def load(cls, name: str) -> HuggingFace:
        """Load a model by hub name or local folder."""
        path = cls.path_of(name)
        config = load_config(path, cls.supported, cls.examples)
        tokenizer = load_tokenizer(path, int(config.text_config.vocab_size)) if cls.supported else None
        preprocessing = read_preprocessing(load_image_settings(path), config, name)
        return cls(f"{cls.source}:{name}", load_model(config, path), preprocessing, tokenizer)

    @classmethod
    def around(cls, model: Any, processor: Any) -> HuggingFace:
        """Return a backbone around a model in memory, with its processor."""
        kind, name = model.config.model_type, str(getattr(model, "name_or_path", ""))
        if cls.supported and kind not in cls.supported:
            raise ModelError(f"Cannot use a {kind!r} model as a backbone, expected one of: {', '.join(SUPPORTED)}.")
        images, tokenizer = getattr(processor, "image_processor", processor), getattr(processor, "tokenizer", None)
        if not hasattr(images, "to_dict") or (cls.supported and tokenizer is None):
            raise ModelError("A model needs its processor: AutoProcessor or AutoImageProcessor.from_pretrained(...)")
        preprocessing = read_preprocessing(images.to_dict(), model.config, name or kind)
        return cls(f"{cls.source}:{name}" if name else f"{registry.IN_MEMORY}{kind}", model, preprocessing, tokenizer)

    @classmethod
    def check(cls, name: str) -> None:
        """Read only the configuration, so that a wrong name is found before anything else."""
        load_config(cls.path_of(name), cls.supported, cls.examples)

    @classmethod
    def files(cls, name: str) -> Sequence[Path]:
        """Return the files of the folder, or of the copy of the hub's model on this machine."""
        return files_of(cls.path_of(name))

    @classmethod
    def path_of(cls, name: str) -> str:
        """Return the folder or the hub name of a model."""
        return local_path(name)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize; CLIP's causal texts are padded to the longest one, SigLIP's to the full length."""
        # SigLIP was trained on lower case, but not every checkpoint's tokenizer converts texts itself.
        encoded = self.tokenizer(
            list(texts) if self.is_clip else [text.lower() for text in texts],
            padding="longest" if self.is_clip else "max_length",
            truncation=True,
            max_length=self.longest_text,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return Tokens(encoded["input_ids"].to(self.device), encoded["attention_mask"].bool().to(self.device))


def read_preprocessing(settings: dict[str, Any], config: Any, name: str) -> Preprocessing:
    """Translate preprocessor_config.json; missing values are those of the model family."""
    is_clip, expected = config.model_type == "clip", _input_side(settings, config)
    has_texts = config.model_type in SUPPORTED
    mean, std = (CLIP_MEAN, CLIP_STD) if is_clip else (HALF, HALF) if has_texts else (IMAGENET_MEAN, IMAGENET_STD)
    size, crop = settings.get("size"), settings.get("crop_size")
    side = (_side(crop) if settings.get("do_center_crop", is_clip) else 0) or _side(size) or expected
    if side != expected and has_texts:  # image models are used at other sizes than they were trained with
        raise damaged_model(f"The preprocessing of {name!r} makes images of {side} pixels, expected {expected}.")
    keeps_shape = is_clip if size is None else isinstance(size, int) or "shortest_edge" in size
    normalizes = settings.get("do_normalize", True)
    resample = settings.get("resample", 2 if config.model_type == "siglip2" else 3)
    if resample not in RESAMPLE:
        raise ModelError(f"Unknown resample {resample!r} in preprocessor_config.json, expected one of {RESAMPLE}.")
    mean = tuple(settings.get("image_mean") or mean) if normalizes else (0.0, 0.0, 0.0)
    std = tuple(settings.get("image_std") or std) if normalizes else (1.0, 1.0, 1.0)
    return Preprocessing(side, (_side(size) or side) if keeps_shape else 0, RESAMPLE[resample], mean, std)


def _side(size: Any) -> int:
    if isinstance(size, dict):
        return int(size.get("shortest_edge") or size.get("height") or 0)
    return int(size or 0)


def _input_side(settings: dict[str, Any], config: Any) -> int:
    if config.model_type not in SUPPORTED:
        found = getattr(config, "image_size", None) or 224
        return min(224, found if isinstance(found, int) else min(found))  # DINOv2 was trained at 518, but used at 224
    vision = config.vision_config
    if config.model_type != "siglip2":
        return int(vision.image_size)
    # Flexible models take any shape up to a number of patches; squares of one size can be batched.
    return int(math.isqrt(settings.get("max_num_patches") or vision.num_patches) * vision.patch_size)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and advice of transformers and huggingface_hub."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as messages

    had_bars, hub_had_bars = messages.is_progress_bar_enabled(), not are_progress_bars_disabled()
    disabled = logging.root.manager.disable
    messages.disable_progress_bar()  # of both libraries
    logging.disable(max(disabled, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(disabled)
        with warnings.catch_warnings():  # where an environment variable decides about the bars of the hub
            warnings.simplefilter("ignore")
            if had_bars:
                messages.enable_progress_bar()
            enable_progress_bars() if hub_had_bars else disable_progress_bars()


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

    if not any(os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        try:  # a proxy would resolve the address
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
        except OSError:
            return True
    return False


def load_config(name: str, supported: tuple[str, ...], known: tuple[str, ...] = ()) -> Any:
    """Return the configuration of a model of a supported type, or of any type if none is listed."""
    if not name:
        example = f", for example {known[0]!r}" if known else ""
        raise ModelError(f"The model id is incomplete: expected a hub name or a folder after the colon{example}.")
    folder = Path(name)  # checked before anything heavy is imported or read
    if is_file(folder):
        raise ModelError(
            f"{name!r} is a file, expected a folder as model.save_pretrained(folder) of transformers makes. Weights "
            "of open_clip are open_clip:MODEL/FILE.safetensors."
        )
    if is_file(folder / "config.json") and not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
        found = f"only {pickled[0]!r}, a pickle, which can run arbitrary code when loaded" if pickled else "no weights"
        raise ModelError(
            f"The folder {name!r} contains {found}. Write model.safetensors with model.save_pretrained(folder)."
        )
    with _loading(name, "config.json", known):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(name, **_source(name))
    if supported and config.model_type not in supported:
        raise ModelError(
            f"{name!r} is a {config.model_type!r} model, expected {' or '.join(supported)}. Choose another model."
        )
    return config


def load_model(config: Any, name: str) -> Any:
    """Return a model in fp32 from safetensors; missing weights or weights of a wrong shape are an error."""
    from transformers import AutoModel, __version__

    # Otherwise transformers asks a public service to convert pickled weights, which we would not load anyway.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    model_class = AutoModel._model_mapping.get(type(config), AutoModel)
    dtype = "dtype" if tuple(int(part) for part in __version__.split(".")[:2]) >= (4, 56) else "torch_dtype"
    options: dict[str, Any] = {dtype: torch.float32, "use_safetensors": True, "output_loading_info": True}
    if "add_pooling_layer" in signature(model_class.__init__).parameters:
        # A pooler that is missing from the files would be initialized at random and change the fingerprint.
        options["add_pooling_layer"] = False
    with _loading(name, "model.safetensors"):
        model, info = model_class.from_pretrained(name, **options, **_source(name))
    if missing := sorted(info.get("missing_keys", ())) + sorted(map(str, info.get("mismatched_keys", ()))):
        which = f"{len(missing)} tensors are missing or have a wrong shape, the first is {missing[0]!r}."
        raise damaged_model(f"The weights of {name!r} are incomplete: {which}")
    return model


def load_tokenizer(name: str, vocabulary: int) -> Any:
    """Return a model's tokenizer, padding on the right, with at most `vocabulary` tokens."""
    with _loading(name, "tokenizer.json"):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name, **_source(name))
        # Special tokens do not count: transformers adds those that are missing from the files.
        n_tokens = len(tokenizer) - len(set(tokenizer.all_special_tokens))
    if not 2 <= n_tokens <= vocabulary:
        raise ModelError(
            f"The tokenizer of {name!r} has {n_tokens} tokens, expected 2 to {vocabulary}. Put that of the model there."
        )
    tokenizer.padding_side = "right"  # as in training; SigLIP 2's tokenizer pads left by default
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_image_settings(name: str) -> dict[str, Any]:
    """Return the content of preprocessor_config.json, or an empty mapping if there is none."""
    with _loading(name, "preprocessor_config.json"):
        from transformers.image_processing_base import ImageProcessingMixin

        try:
            return dict(ImageProcessingMixin.get_image_processor_dict(name, **_source(name))[0])
        except (OSError, ValueError):
            if is_file(Path(name, "preprocessor_config.json")):
                raise
            return {}


@contextmanager
def _loading(name: str, file: str, known: tuple[str, ...] = ()) -> Iterator[None]:
    """Silence the libraries, and say which file cannot be loaded; their errors have no common base class."""
    try:
        with quiet():
            yield
    except Exception as error:
        raise _not_loaded(name, file, error, known) from error


def _source(name: str) -> dict[str, Any]:
    return {"trust_remote_code": False, "local_files_only": not is_folder(name) and hub_unreachable()}


def _not_loaded(name: str, file: str, error: Exception, known: tuple[str, ...] = ()) -> ModelError:
    if "operator torchvision::" in str(error):
        return ModelError(
            "The installed torchvision was built for another torch, and transformers fails with it. Install both from "
            "the same index, or remove torchvision: captune does not need it."
        )
    if is_folder(name):
        cause = (str(error).strip() or type(error).__name__).splitlines()[0][:200].strip(" .")
        return ModelError(
            f"The folder {name!r} does not contain a usable {file}: {cause}. Download or save the model again, or "
            "check the path."
        )
    hint = "" if name in known else nearest(name, known)
    return ModelError(
        f"No model {name!r}: it is not a local folder, and {file} is neither in the local cache nor could it be "
        f"downloaded from the hub.{hint} Check the name and the connection (downloading needs HF_HUB_OFFLINE unset), "
        "or pass a local folder: hf:path/to/folder."
    )
