"""Zero-shot classification without any adaptation: the class whose text is nearest to the image."""

from __future__ import annotations

from captune.backbones.base import Backbone
from captune.data.task import AdaptationTask
from captune.methods.base import Context, DescribeSettings, Method
from captune.tuners.base import Tuner
from captune.tuners.frozen import Frozen


class ZeroShot(Method):
    """The baseline of every other method; nothing is learned."""

    Settings = DescribeSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Return the frozen backbone with the class texts."""
        return Frozen(backbone, context.align_concepts(task, backbone, self.settings.describe).vocabulary)
