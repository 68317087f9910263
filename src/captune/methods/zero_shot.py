"""CLIP's own rule without any adaptation: the class whose text is nearest to the image."""

from __future__ import annotations

from captune.backbones.base import Backbone
from captune.data.task import AdaptationTask
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner
from captune.tuners.frozen import Frozen


class ZeroShot(Method):
    """Nothing is learned; every other method is measured against this one."""

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Return the frozen backbone with the class texts."""
        return Frozen(backbone, task.vocabulary)
