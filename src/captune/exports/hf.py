"""A folder that transformers can load (CLIP and SigLIP models), with the class vectors next to the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch.nn.functional import normalize

from captune.backbones.hf import HuggingFace
from captune.core.arrays import Floats
from captune.core.errors import InputError
from captune.core.files import write_json, write_whole
from captune.core.text import option
from captune.exports.base import ExportFormat, ExportSettings
from captune.exports.onnx import TOLERANCE, compare, read_examples
from captune.report.card import model_card
from captune.results.run import Run

RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
USAGE = """import json, torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModel

folder = "."
model = AutoModel.from_pretrained(folder).eval()
processor = AutoImageProcessor.from_pretrained(folder)
classes = json.load(open(f"{folder}/classes.json"))
vectors = load_file(f"{folder}/class_vectors.safetensors")["class_vectors"]

pixels = processor(Image.open("photo.jpg").convert("RGB"), return_tensors="pt")["pixel_values"]
with torch.inference_mode():
    features = model.get_image_features(pixel_values=pixels)
    features = getattr(features, "pooler_output", features)
    features = torch.nn.functional.normalize(features, dim=-1)
    probabilities = (classes["logit_scale"] * features @ vectors.T).softmax(-1)[0]
print(classes["names"][probabilities.argmax()], float(probabilities.max()))"""


class TransformersFolder(ExportFormat):
    """The whole model; only for runs in which nothing but the class vectors changed."""

    target = "hf"
    is_folder = True
    takes = frozenset({"images", "n_checked"})

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write weights, tokenizer, preprocessing and class vectors, then load them and compare."""
        from transformers import AutoModel

        backbone, vocabulary = _plain_backbone(run), run.classifier.vocabulary
        examples = read_examples(run, settings)
        try:
            backbone.model.save_pretrained(target)
            backbone.tokenizer.save_pretrained(target)
        except Exception as error:  # safetensors and tokenizers raise errors of their own if a disk is full
            raise error if isinstance(error, OSError) else OSError(str(error)) from error
        write_json(target / "preprocessor_config.json", _preprocessor(backbone))
        vectors = run.classifier.class_vectors.float().cpu().contiguous()
        write_whole(target / "class_vectors.safetensors", save({"class_vectors": vectors}))
        sentences = [list(vocabulary.texts(class_id)) for class_id in range(len(vocabulary))]
        facts = {"names": list(vocabulary.names), "logit_scale": backbone.logit_scale, "sentences": sentences}
        write_json(target / "classes.json", facts)
        model = AutoModel.from_pretrained(str(target), trust_remote_code=False).eval()

        @torch.inference_mode()
        def score(views: NDArray[np.uint8]) -> Floats:
            features = model.get_image_features(pixel_values=backbone.preprocessing.normalize(views))
            features = normalize(getattr(features, "pooler_output", features), dim=-1)
            return np.asarray((backbone.logit_scale * features @ vectors.T).softmax(-1).numpy())

        difference = compare(score, examples, is_exact=False)["max_difference"]
        if not difference <= TOLERANCE:
            raise _refusal(run, f"the tuner {run.classifier.tuner_name!r} changes more than the class vectors")
        write_whole(target / "README.md", model_card(run, USAGE))
        told = f"probabilities differ from those of the run by at most {difference:.1e}."
        return [f"On {len(examples.views)} images, {told}"]


def _plain_backbone(run: Run) -> Any:  # noqa: ANN401 (its model and tokenizer have no types)
    """Return the backbone of a run, or raise an error if transformers has no such model."""
    backbone = run.classifier.backbone
    if not isinstance(backbone, HuggingFace):
        raise _refusal(run, f"the backbone {backbone.identifier!r} is not a single model in transformers' format")
    if backbone.model.config.model_type == "siglip2":
        raise _refusal(run, "the preprocessing of SigLIP 2 with flexible resolution cannot be exported")
    if run.classifier.n_parts is not None:
        raise _refusal(run, "classes were merged, so that some have several class vectors")
    if run.classifier.class_vectors.shape[1] != backbone.embed_dim:
        raise _refusal(run, f"the tuner {run.classifier.tuner_name!r} has embeddings of its own")
    return backbone


def _refusal(run: Run, reason: str) -> InputError:
    return InputError(
        f"The run {str(run.folder)!r} cannot be exported to transformers: {reason}. Use {option('format', 'onnx')} for "
        "the model; the label formats (csv, parquet, label-studio, coco, cleanlab) work for every run."
    )


def _preprocessor(backbone: Any) -> dict[str, Any]:  # noqa: ANN401
    own = backbone.preprocessing
    square = {"height": own.image_size, "width": own.image_size}
    shape = {"size": {"shortest_edge": own.resize}, "do_center_crop": True, "crop_size": square}
    return {
        "image_processor_type": "CLIPImageProcessor" if backbone.is_clip else "SiglipImageProcessor",
        "do_resize": True,
        "resample": RESAMPLE[own.resample],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(own.mean),
        "image_std": list(own.std),
        "do_convert_rgb": True,
        **(shape if own.resize else {"size": square, "do_center_crop": False}),
    }
