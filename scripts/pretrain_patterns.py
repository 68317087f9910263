"""Pretrain `embedded:patterns`, the small CLIP of the embedded world, from procedural photographs and captions.

Two phases on two cores, in well under two hours:

1. *look*: the image tower learns to distinguish patterns with a linear head, which is discarded at the end.
   Contrastive training from scratch would spend most of its time on this.
2. *caption*: both towers learn photograph-caption pairs with CLIP's loss. The logit scale rises on a fixed
   schedule to CLIP's 100. The head keeps a small weight, so that classes whose names are confused in the
   captions stay separated.

All randomness derives from `--seed` and the step number: an interrupted run resumes from its checkpoint with
the same command and ends with the same weights.

    python scripts/pretrain_patterns.py --out src/captune/backbones/embedded/patterns --work /tmp/patterns
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import nn
from torch.nn import functional
from transformers import CLIPModel, CLIPTokenizer

from captune.world import Photographs, class_names, descriptions_path, render_world
from pattern_captions import write_captions
from pattern_clip import build_model, build_tokenizer, save_folder

PROMPT_WORDS = (
    "a photo of the an this that these those image picture close-up closeup macro detail sample texture textile "
    "Please describe the most distinguishing visual features of in one sentence fabric pattern design motif print "
    "with without and or which is are has have made from typically usually often characterized featuring "
    "repeating regular irregular geometric small large tiny thick thin horizontal vertical diagonal curved straight"
)


@dataclass(frozen=True)
class Plan:
    """Steps, learning rates and logit scale of both phases."""

    look_steps: int
    caption_steps: int
    batch: int = 128
    look_rate: float = 1.2e-3
    caption_rate: float = 7e-4
    head_weight: float = 0.15
    first_scale: float = 20.0
    last_scale: float = 100.0

    @property
    def steps(self) -> int:
        """Steps of both phases."""
        return self.look_steps + self.caption_steps

    def rate(self, step: int) -> float:
        """Return the learning rate: linear warmup and cosine decay in each phase."""
        done, total, peak = (
            (step, self.look_steps, self.look_rate)
            if step < self.look_steps
            else (step - self.look_steps, self.caption_steps, self.caption_rate)
        )
        rise = min(1.0, (done + 1) / min(150, max(1, total // 5)))
        return peak * rise * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * done / total)))

    def scale(self, step: int) -> float:
        """Return the logit scale, which rises geometrically over the first 40 % of the second phase."""
        share = min(1.0, max(0.0, (step - self.look_steps) / (0.4 * self.caption_steps)))
        return float(self.first_scale * (self.last_scale / self.first_scale) ** share)


def pixel_values(images: np.ndarray) -> torch.Tensor:
    """Return photographs as the preprocessor of the saved folder prepares them."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255.0).sub_(0.5).div_(0.25).contiguous()


def draw_batch(
    photos: Photographs, plan: Plan, generator: np.random.Generator, *, recolor: bool
) -> tuple[torch.Tensor, np.ndarray]:
    """Return augmented photographs of a batch and their positions."""
    chosen = generator.integers(0, len(photos.labels), plan.batch)
    images = photos.images[chosen]
    flips = generator.random((plan.batch, 2)) < 0.5
    images[flips[:, 0]] = images[flips[:, 0], ::-1]
    images[flips[:, 1]] = images[flips[:, 1], :, ::-1]
    pixels = pixel_values(images)
    if recolor and generator.random() < 0.7:
        pixels = pixels[:, torch.from_numpy(generator.permutation(3))]
    gain = torch.from_numpy(generator.uniform(0.85, 1.15, (plan.batch, 1, 1, 1)).astype(np.float32))
    return pixels * gain, chosen


def contrastive_loss(image: torch.Tensor, text: torch.Tensor, scale: float) -> torch.Tensor:
    """Return CLIP's symmetric loss of a batch of pairs."""
    logits = scale * functional.normalize(image, dim=-1) @ functional.normalize(text, dim=-1).T
    target = torch.arange(len(logits))
    return 0.5 * (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target))


class Pretraining:
    """The state of a run: model, head, optimizer and step."""

    def __init__(self, model: CLIPModel, tokenizer: CLIPTokenizer, plan: Plan, seed: int) -> None:
        self.model, self.tokenizer, self.plan, self.seed = model, tokenizer, plan, seed
        self.head = nn.Linear(model.config.projection_dim, len(class_names()))
        self.step = 0
        self.optimizer = self._fresh_optimizer()

    def _fresh_optimizer(self) -> torch.optim.AdamW:
        decayed = [p for p in self._parameters() if p.ndim > 1]
        others = [p for p in self._parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, betas=(0.9, 0.98))

    def _parameters(self) -> Iterator[nn.Parameter]:
        named = self.model.named_parameters()
        yield from (parameter for name, parameter in named if name != "logit_scale")
        yield from self.head.parameters()

    def advance(self, photos: Photographs) -> float:
        """Take one step and return its loss."""
        generator = np.random.default_rng([self.seed, 1, self.step])
        looking = self.step < self.plan.look_steps
        if self.step == self.plan.look_steps:
            self.optimizer = self._fresh_optimizer()
        pixels, chosen = draw_batch(photos, self.plan, generator, recolor=looking)
        image = self.model.visual_projection(self.model.vision_model(pixels).pooler_output)
        target = torch.from_numpy(photos.labels[chosen])
        # The head sees normalized embeddings, because CLIP only compares directions.
        told = functional.cross_entropy(
            self.head(functional.normalize(image, dim=-1) * 16.0), target, label_smoothing=0.05
        )
        loss = told if looking else self.plan.head_weight * told + self._caption_loss(image, photos, chosen, generator)
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(list(self._parameters()), 1.0)
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    def _caption_loss(
        self, image: torch.Tensor, photos: Photographs, chosen: np.ndarray, generator: np.random.Generator
    ) -> torch.Tensor:
        captions = write_captions(photos.labels[chosen], photos.dyes[chosen], generator)
        text = encode_texts(self.model, self.tokenizer, captions)
        return contrastive_loss(image, text, self.plan.scale(self.step))

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        state = {
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def load(self, path: Path) -> None:
        """Restore a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def save_look(self, path: Path) -> None:
        """Save the weights of the first phase, which do not depend on the captions."""
        torch.save({"looker": self._looker().state_dict(), "head": self.head.state_dict()}, path)

    def load_look(self, path: Path) -> None:
        """Restore the weights of the first phase and start the second one."""
        state = torch.load(path, weights_only=True)
        self._looker().load_state_dict(state["looker"])
        self.head.load_state_dict(state["head"])
        self.step = self.plan.look_steps

    def _looker(self) -> nn.ModuleList:
        return nn.ModuleList([self.model.vision_model, self.model.visual_projection])


def encode_texts(model: CLIPModel, tokenizer: CLIPTokenizer, texts: list[str]) -> torch.Tensor:
    """Return the projected text features."""
    tokens = tokenizer(
        texts,
        padding=True,
        truncation=True,
        max_length=model.config.text_config.max_position_embeddings,
        return_tensors="pt",
    )
    return model.text_projection(model.text_model(**tokens).pooler_output)


@torch.no_grad()
def check(run: Pretraining, held_out: Photographs) -> str:
    """Return the accuracy of the head and of the class names on held-out photographs."""
    run.model.eval()
    pixels = pixel_values(held_out.images)
    image = functional.normalize(run.model.visual_projection(run.model.vision_model(pixels).pooler_output), dim=-1)
    told = (run.head(image * 16.0).argmax(1).numpy() == held_out.labels).mean()
    names = [f"a photo of a {name}" for name in class_names()]
    text = functional.normalize(encode_texts(run.model, run.tokenizer, names), dim=-1)
    named = ((image @ text.T).argmax(1).numpy() == held_out.labels).mean()
    run.model.train()
    return f"head {told:.3f}  zero-shot {named:.3f}"


def corpus(photos: Photographs, seed: int) -> list[str]:
    """Return the texts on which the tokenizer is trained."""
    generator = np.random.default_rng([seed, 2])
    chosen = generator.integers(0, len(photos.labels), 20_000)
    described = yaml.safe_load(descriptions_path().read_text())
    lines = [sentence for sentences in described.values() for sentence in sentences]
    return [*write_captions(photos.labels[chosen], photos.dyes[chosen], generator), *lines * 3, *[PROMPT_WORDS] * 3]


def main() -> None:
    """Train, log and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished model")
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--images-per-class", type=int, default=1200)
    parser.add_argument("--look-steps", type=int, default=700)
    parser.add_argument("--caption-steps", type=int, default=900)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    log = (arguments.work / "pretraining-log.txt").open("a", buffering=1)

    def say(line: str) -> None:
        print(line, flush=True)
        log.write(line + "\n")

    say(f"# pretrain_patterns.py {vars(arguments)} torch {torch.__version__}")
    started = time.time()
    photos = render_world(arguments.images_per_class, arguments.seed)
    held_out = render_world(40, arguments.seed, "test")
    say(f"{len(photos.labels)} photographs drawn in {time.time() - started:.0f} s")
    tokenizer = build_tokenizer(corpus(photos, arguments.seed))
    plan = Plan(arguments.look_steps, arguments.caption_steps)
    run = Pretraining(build_model(tokenizer, arguments.seed), tokenizer, plan, arguments.seed)
    say(f"{plan}; {sum(p.numel() for p in run.model.parameters()):,} weights, {len(tokenizer)} tokens")
    checkpoint = arguments.work / "checkpoint.pt"
    looked = arguments.work / "looked.pt"
    if checkpoint.exists():
        run.load(checkpoint)
        say(f"resumed at step {run.step}")
    elif looked.exists():
        run.load_look(looked)
        say(f"first phase taken from {looked.name}: it is the same for all captions")
    started, losses = time.time(), []
    while run.step < plan.steps:
        losses.append(run.advance(photos))
        if run.step % 100 == 0 or run.step == plan.steps:
            phase = "look" if run.step <= plan.look_steps else "caption"
            pace = f"rate {plan.rate(run.step - 1):.1e}  scale {plan.scale(run.step - 1):.0f}"
            facts = f"loss {np.mean(losses):.3f}  {check(run, held_out)}  {pace}  {time.time() - started:.0f} s"
            say(f"step {run.step:5d}  {phase}  {facts}")
            losses = []
            run.save(checkpoint)
        if run.step == plan.look_steps:
            run.save_look(looked)
    save_folder(run.model, tokenizer, arguments.out, plan.last_scale)
    say(f"saved to {arguments.out}")


if __name__ == "__main__":
    main()
