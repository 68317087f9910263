"""The architecture of `embedded:patterns`: CLIP configuration, byte-level tokenizer and model folder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer, CLIPVisionModelWithProjection

CONTEXT = 48
"""Longest text in tokens; the longest shipped description takes about half of it."""

WIDTH, HEADS, MLP, LAYERS = 128, 4, 384, 8


def build_tokenizer(texts: list[str], n_merges: int = 640) -> CLIPTokenizer:
    """Return a CLIP tokenizer trained on these texts that can encode any string."""
    shape = CLIPTokenizer()._tokenizer  # normalizer and pre-tokenizer exactly as transformers will rebuild them
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learner.normalizer = shape.normalizer or normalizers.Lowercase()
    learner.pre_tokenizer = shape.pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(alphabet) + n_merges,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    # As in CLIP: every byte, every byte that ends a word, the merged pieces, then the two marks.
    pieces = [*alphabet, *(f"{byte}</w>" for byte in alphabet)]
    known = set(pieces)
    for first, second in merges:
        if first + second not in known:
            known.add(first + second)
            pieces.append(first + second)
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={piece: number for number, piece in enumerate(pieces)}, merges=merges, model_max_length=CONTEXT
    )


def build_model(tokenizer: CLIPTokenizer, seed: int) -> CLIPModel:
    """Return an untrained CLIP of two eight-layer towers for 64 x 64 pixels in patches of 16."""
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "projection_dim": WIDTH,
    }
    text = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {"image_size": 64, "patch_size": 16}
    config = CLIPConfig(text_config=tower | text, vision_config=tower | vision, projection_dim=WIDTH)
    torch.manual_seed(seed)
    model = CLIPModel(config)
    # The image tower starts from the same numbers whatever the size of the vocabulary.
    torch.manual_seed(seed + 1)
    looker = CLIPVisionModelWithProjection(config.vision_config)
    model.vision_model.load_state_dict(looker.vision_model.state_dict())
    model.visual_projection.load_state_dict(looker.visual_projection.state_dict())
    return model


def save_folder(model: CLIPModel, tokenizer: CLIPTokenizer, folder: Path, scale: float) -> None:
    """Write config, half-precision safetensors, tokenizer and preprocessor as transformers expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        model.logit_scale.fill_(math.log(scale))
    tokenizer.save_pretrained(folder)
    model.config.architectures = ["CLIPModel"]
    model.config.dtype = torch.float32  # stored in half the space, computed in full precision
    model.config.save_pretrained(folder)
    weights = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    # In half precision, CLIP's logit scale of 100 would become 99.96.
    weights["logit_scale"] = model.logit_scale.detach().clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    preprocessor = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": 64},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 64, "width": 64},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")
