"""Named models: short names of encoders with their ids and templates, in a YAML file that users can extend."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from captune.core.settings import build, read_yaml

OWN = "CAPTUNE_MODELS"
"""The environment variable that names a file with more models."""


@dataclass(frozen=True)
class NamedModel:
    """An encoder with a short name.

    Attributes:
        id: The id of a backbone or of a second encoder, as source:name.
        template: The sentence with {} that its texts should have; empty if it has no texts.
        source: Where it is described.
        license: The license of its weights.
        note: What it is for.
    """

    id: str
    template: str = ""
    source: str = ""
    license: str = ""
    note: str = ""


def full_id(identifier: str) -> str:
    """Return the id that a short name stands for; any other text as it is."""
    return identifier if ":" in identifier else named_models().get(identifier, NamedModel(identifier)).id


def named_models() -> dict[str, NamedModel]:
    """Return the models by name; those in the user's file replace others of the same name."""
    own = os.environ.get(OWN)
    files = [Path(__file__).with_name("models.yaml"), *([Path(own)] if own else [])]
    entries = {str(name): facts for file in files for name, facts in read_yaml(file).items()}
    return {name: build(NamedModel, facts, f"the model {name!r}") for name, facts in entries.items()}
