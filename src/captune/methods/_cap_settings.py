"""The settings of CAP, with the values of the paper's settings table as defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from captune.core.settings import NonNegative, Positive

Share = Annotated[float, Ge(0), Le(1)]
Rate = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class CapSettings:
    """The settings of CAP; the defaults are the paper's, the preset `quick` departs from them.

    Attributes:
        recipe: Where the authors' release differs from the paper (tendency, counts, growth, margin scale).
        tuner: What is trained on the backbone; `captune list tuners` names them.
        concept_alignment: Whether misleading names are looked for and described.
        detection: `paper` runs Algorithm 1 once with t = ceil(C/10); `robust` runs it ten times with a larger t.
        describe: Which classes are described: those whose names mislead, or all.
        choose: Whether the best description stands for a class, or the mean of all.
        class_texts: Whether the student starts from the class names or from the chosen descriptions.
        start_from: Beyond the paper: whether the first pseudo-labels come from zero-shot or from Gaussian clusters that
            are held by the class texts, as in the method `transductive`.
        k: Images of each class that are pseudo-labeled before training.
        tau: Confidence above which a prediction becomes a pseudo-label.
        margin: Whether the loss has the confusion-aware calibrated margin.
        margin_scale: The margin m, in logits at a logit scale of 100.
        scale_margin: Whether m is converted to the model's own logit scale; `released` never does.
        independent_adapters: Whether pseudo-labels made while training have an adapter of their own.
        adapter_width: Units of the adapters that are used in training only.
        neighbors: Beyond the paper: pseudo-labels must agree with this many nearest images; 0 asks none.
        balance: How strongly neighbors' predictions are evened out over the classes, 0 to 1.
        start_share: Beyond the paper: how much of the decision stays with the texts that the tuner `feature_adapter`
            started from; nothing where some classes are labeled, since labels teach more than their texts.
        strong_views: Augmented views of each image that are embedded once, where the image encoder is fixed.
        grow_every: Epochs after which the pseudo-labeled images grow.
        epochs: Passes of `iterations` steps.
        iterations: Steps of an epoch.
        train_batch: Images of each kind in a step.
        learning_rate: The highest rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        warmup_epochs: Epochs until the highest rate is reached.
        gradient_clip: Largest gradient norm; 0 clips nothing.
    """

    recipe: Literal["paper", "released"] = "paper"
    tuner: str = "maple"
    concept_alignment: bool = True
    detection: Literal["paper", "robust"] = "paper"
    describe: Literal["mismatched", "all"] = "mismatched"
    choose: Literal["best", "mean"] = "best"
    class_texts: Literal["names", "aligned"] = "names"
    start_from: Literal["zero_shot", "transductive"] = "zero_shot"
    k: Positive = 16
    tau: Share = 0.85
    margin: bool = True
    margin_scale: Annotated[float, Ge(0)] = 12.0
    scale_margin: bool = True
    independent_adapters: bool = True
    adapter_width: Positive = 128
    neighbors: NonNegative = 0
    balance: Share = 0.5
    start_share: Annotated[float, Ge(0), Lt(1)] = 0.0
    strong_views: Positive = 4
    grow_every: Positive = 5
    epochs: Positive = 50
    iterations: Positive = 50
    train_batch: Positive = 32
    learning_rate: Rate = 0.01
    momentum: Share = 0.9
    weight_decay: Annotated[float, Ge(0)] = 0.1
    warmup_epochs: NonNegative = 1
    gradient_clip: Annotated[float, Ge(0)] = 0.0


QUICK: Mapping[str, Any] = {
    "tuner": "feature_adapter",
    "detection": "robust",
    "describe": "all",
    "class_texts": "aligned",
    "neighbors": 10,
    "start_share": 0.5,
}
