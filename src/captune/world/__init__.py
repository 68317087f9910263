"""The embedded world: procedural photographs of textile patterns for the demo and the tests."""

from captune.world.patterns import PATTERNS, descriptions_path
from captune.world.photographs import Photographs, class_names, render, render_world, write_world

WORLD_KINDS = {name: pattern.kind for name, pattern in PATTERNS.items()}
__all__ = ["WORLD_KINDS", "Photographs", "class_names", "descriptions_path", "render", "render_world", "write_world"]
