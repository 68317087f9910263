"""The embedded world: procedural photographs of textile patterns for the demo and the tests."""

from captune.world.classes import WORLD_KINDS, descriptions_path
from captune.world.generate import Photographs, class_names, render, render_world, write_world

__all__ = [
    "WORLD_KINDS",
    "Photographs",
    "class_names",
    "descriptions_path",
    "render",
    "render_world",
    "write_world",
]
