"""A folder that transformers loads (CLIP and SigLIP models), with the class matrix beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from captune.core.errors import CaptuneError, InputError
from captune.core.files import write_json, write_whole
from captune.exports.base import ExportFormat, ExportSettings, FinishedRun

RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
README = """# A classifier for transformers

The weights, the tokenizer and the preprocessing are those of `{backbone}`. `class_vectors.safetensors` holds one
vector of length one for each class, in the order of `classes.json`. Made by captune; on {n_images} images the
probabilities of the code below differ from the run's by at most {difference:.1e}.

    import json, torch
    from PIL import Image
    from safetensors.torch import load_file
    from transformers import AutoImageProcessor, AutoModel

    folder = "."
    model = AutoModel.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder)
    classes = json.load(open(f"{{folder}}/classes.json"))
    vectors = load_file(f"{{folder}}/class_vectors.safetensors")["class_vectors"]

    pixels = processor(Image.open("photo.jpg").convert("RGB"), return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        features = model.get_image_features(pixel_values=pixels)
        features = getattr(features, "pooler_output", features)
        features = torch.nn.functional.normalize(features, dim=-1)
        probabilities = (classes["logit_scale"] * features @ vectors.T).softmax(-1)[0]
    print(classes["names"][probabilities.argmax()], float(probabilities.max()))
"""


class TransformersFolder(ExportFormat):
    """The whole image-text model; only for runs that changed nothing but the class vectors."""

    target: ClassVar[str] = "hf"
    is_folder: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"images", "n_checked"})

    def write(self, run: FinishedRun, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write weights, tokenizer, preprocessing and class vectors, then load them again and compare."""
        from safetensors.torch import save

        from captune.exports._checking import TOLERANCE, gather_examples

        classifier = run.classifier
        backbone: Any = _fitting_backbone(run)
        examples = gather_examples(run, settings)
        backbone.model.save_pretrained(target)
        backbone.tokenizer.save_pretrained(target)
        write_json(target / "preprocessor_config.json", _preprocessor(backbone))
        vectors = classifier.class_vectors.float().cpu().contiguous()
        write_whole(target / "class_vectors.safetensors", save({"class_vectors": vectors}))
        vocabulary = classifier.vocabulary
        write_json(
            target / "classes.json",
            {
                "names": list(classifier.names),
                "logit_scale": backbone.logit_scale,
                "sentences": [list(vocabulary.texts(class_id)) for class_id in range(len(vocabulary))],
            },
        )
        difference = _difference(target, backbone, examples, vectors)
        if not difference <= TOLERANCE:
            raise CaptuneError(
                f"The folder's probabilities differ from the run's by {difference:.2e}, expected at most "
                f"{TOLERANCE:.0e}. Please report this with the backbone of the run, and use --format onnx."
            )
        n_images = len(examples.views)
        said = README.format(backbone=backbone.identifier, n_images=n_images, difference=difference)
        write_whole(target / "README.md", said)
        return [f"On {n_images} images the probabilities differ from the run's by at most {difference:.1e}."]


def _fitting_backbone(run: FinishedRun) -> Any:  # noqa: ANN401
    """Return the transformers backbone of a run whose tuner is nothing but class vectors, or say why it is not."""
    import torch

    from captune.backbones.hf import HuggingFace

    classifier = run.classifier
    backbone, tuner = classifier.backbone, classifier.tuner
    reason = ""
    if not isinstance(backbone, HuggingFace):
        reason = f"the backbone {backbone.identifier!r} is not one model in transformers' format"
    elif backbone.model.config.model_type == "siglip2":
        reason = "a SigLIP 2 of flexible resolution has no preprocessing of its own in the folder"
    elif tuner.edits_images:
        reason = f"the tuner {classifier.tuner_name!r} puts prompts into the image encoder"
    else:
        with torch.inference_mode():
            random = torch.randn(8, backbone.embed_dim, generator=torch.Generator().manual_seed(0))
            some = torch.nn.functional.normalize(random, dim=-1).to(backbone.device)
            plain = backbone.logit_scale * some @ classifier.class_vectors.T
            if not torch.allclose(tuner.refine(some), some, atol=1e-6):
                reason = f"the tuner {classifier.tuner_name!r} adapts the image embeddings"
            elif not torch.allclose(tuner.logits(some, classifier.class_vectors), plain, atol=1e-4):
                reason = f"the tuner {classifier.tuner_name!r} scores classes by a rule of its own"
    if reason:
        raise InputError(
            f"The run {str(run.folder)!r} cannot become a transformers folder: {reason}. Use --format onnx for the "
            "model; the formats for labels (csv, parquet, label-studio, coco, cleanlab) work for every run."
        )
    return backbone


def _preprocessor(backbone: Any) -> dict[str, Any]:  # noqa: ANN401
    own = backbone.preprocessing
    square = {"height": own.image_size, "width": own.image_size}
    kind = "CLIP" if backbone.is_clip else "Siglip"
    shape = {"size": {"shortest_edge": own.resize}, "do_center_crop": True, "crop_size": square}
    return {
        "image_processor_type": f"{kind}ImageProcessor",
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


def _difference(folder: Path, backbone: Any, examples: Any, vectors: Any) -> float:  # noqa: ANN401
    """Load the folder as a user of transformers would, and return how far its probabilities are from the run's."""
    import numpy as np
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(str(folder), trust_remote_code=False).eval()
    worst = 0.0
    with torch.inference_mode():
        for start in range(0, len(examples.views), 32):
            pixels = backbone.preprocessing.normalize(examples.views[start : start + 32])
            features = model.get_image_features(pixel_values=pixels)
            features = torch.nn.functional.normalize(getattr(features, "pooler_output", features), dim=-1)
            found = (backbone.logit_scale * features @ vectors.T).softmax(-1).numpy()
            worst = max(worst, float(np.abs(found - examples.probabilities[start : start + 32]).max()))
    return worst
