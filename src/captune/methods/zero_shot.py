"""Zero-shot classification without any adaptation: the class whose text is nearest to the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from captune.backbones.base import Backbone
from captune.data.task import AdaptationTask
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner
from captune.tuners.frozen import Frozen


@dataclass(frozen=True)
class ZeroShotSettings:
    """The one setting of zero-shot classification.

    Attributes:
        describe: With `none`, a class is represented by its name; with `all`, by the mean of name and descriptions.
    """

    describe: Literal["none", "all"] = "none"


class ZeroShot(Method):
    """The baseline of every other method; nothing is learned."""

    Settings: ClassVar[type[ZeroShotSettings]] = ZeroShotSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Return the frozen backbone with the class texts."""
        return Frozen(backbone, context.align_concepts(task, backbone, self.settings.describe).vocabulary)
