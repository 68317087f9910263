"""A cell of a benchmark: one dataset, learning setting, method and seed, named by a digest of all that was chosen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt

from captune.benchmark.splits import Setting
from captune.core import registry
from captune.core.settings import Positive, RunSettings, build_run
from captune.plan import with_preset
from captune.training.checkpoint import digest_of

PLACE_SETTINGS = ("seed", "workers", "cache", "root", "target_classes")
"""Settings that are no choice of a cell: they stand elsewhere in it, or belong to the machine."""
TEST_BED = ("backbone", "template", "describer", "domain")
"""Settings that most cells of a suite have in common."""
SETTING_TITLES = {"ul": "UL", "ssl": "SSL", "trzsl": "TRZSL"}


@dataclass(frozen=True)
class SplitSettings:
    """What of a dataset a method may see.

    Attributes:
        n_labels: Labeled images of each class in semi-supervised learning.
        seen_share: Share of the classes that are labeled in transductive zero-shot learning.
        unlabeled_share: Share of the unlabeled images that is kept.
        imbalance: Unlabeled images of the largest class over those of the smallest; 1 leaves them as they are.
    """

    n_labels: Positive = 2
    seen_share: Annotated[float, Gt(0), Lt(1)] = 0.62
    unlabeled_share: Annotated[float, Gt(0), Le(1)] = 1.0
    imbalance: Annotated[float, Ge(1)] = 1.0


@dataclass(frozen=True)
class Cell:
    """One measurement to make.

    Attributes:
        dataset: The dataset's id.
        setting: `ul`, `ssl` or `trzsl`.
        seed: Seed of the run.
        split_seed: Seed of the split.
        settings: Everything that is set, flat; paths still hold `{data}` and `{models}`.
        split: What the method may see of the dataset.
    """

    dataset: str
    setting: Setting
    seed: int
    split_seed: int
    settings: Mapping[str, Any]
    split: SplitSettings = field(default_factory=SplitSettings)

    @property
    def method(self) -> str:
        """Return the id of the method."""
        return str(self.settings["method"])

    @property
    def key(self) -> str:
        """Return the digest of all choices that differ from their default, so that new settings change no key."""
        defaults = _plain(RunSettings(), registry.load("methods", self.method).Settings())
        chosen = {name: value for name, value in self.settings.items() if value != defaults.get(name)}
        chosen.pop("preset", None)  # it is spelled out
        return digest_of({**self.facts(), "settings": {**chosen, "method": self.method}})[:16]

    @property
    def name(self) -> str:
        """Return the name of the cell's files."""
        return f"{self.dataset}-{self.setting}-{self.method}-{self.seed}-{self.key}"

    @property
    def choices(self) -> dict[str, Any]:
        """Return what sets the cell apart from others of its dataset, setting, method and preset."""
        usual = resolve_settings({"method": self.method, "preset": self.settings.get("preset", "")})
        usual |= {name: self.settings.get(name) for name in TEST_BED}
        own = {name: value for name, value in self.settings.items() if value != usual.get(name)}
        split = dataclasses.asdict(SplitSettings())
        return own | {name: value for name, value in self.facts()["split"].items() if value != split[name]}

    def facts(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Cell:
        """Return the cell that gave these facts."""
        return cls(**{**facts, "split": SplitSettings(**facts["split"])})


def resolve_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting of a run with these values, presets spelled out; wrong ones are listed at once."""
    method_class = registry.load("methods", str(values["method"]))
    run, own = build_run(with_preset(method_class, values), method_class.Settings)
    return {name: value for name, value in _plain(run, own).items() if name not in PLACE_SETTINGS}


def _plain(*settings: Any) -> dict[str, Any]:  # noqa: ANN401 (settings dataclasses)
    """Return settings as JSON would give them back."""
    everything = {name: value for part in settings for name, value in dataclasses.asdict(part).items()}
    plain: dict[str, Any] = json.loads(json.dumps(everything))
    return plain
