"""The keyword settings of `captune.adapt` for editors; written by scripts/typed_settings.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class AdaptSettings(TypedDict, total=False):
    """Settings of every run and of all methods; `captune adapt --help-settings METHOD` explains them."""

    rename: Mapping[str, str]
    merge: Mapping[str, str | Sequence[str]]
    method: str
    backbone: Any
    template: str
    preset: str
    describer: Any
    domain: str
    target_classes: Literal["all", "auto"]
    keep_better: bool
    reject: float
    seed: int
    batch_size: int
    workers: int
    image_column: str
    root: str | Path
    cache: str | Path
    accelerator: Literal["auto", "cpu", "cuda", "mps"]
    devices: int
    precision: Literal["16-mixed", "32-true", "bf16-mixed"]
    second_encoder: str
    second_weight: float
    class_chunk: int
    detection: Literal["paper", "robust"]
    describe: Literal["all", "auto", "confused", "mismatched", "none"]
    choose: Literal["best", "mean"]
    k: int
    candidates: tuple[str, ...]
    epochs: int
    learning_rate: float
    momentum: float
    weight_decay: float
    warmup_epochs: int
    gradient_clip: float
    tuner: str
    concept_alignment: bool
    class_texts: Literal["aligned", "names"]
    start_from: Literal["transductive", "zero_shot"]
    tau: float
    margin: bool
    margin_scale: float
    count_on: Literal["accepted", "pseudo_labeled"]
    independent_adapters: bool
    strong_views: int
    grow_every: int
    iterations: int
    train_batch: int
    tuner_settings: dict[str, Any] | None
    rounds: int
    alpha: float
    beta: float | None
    g: float
    image_weight: float
    half_weight_at: float
    shrinkage: float
    even_out: bool
    labeled_weight: float
    absent_names: bool
    ensemble: int
