"""Which names mislead, and which classes collide."""
