"""From predictions to pseudo-labels."""
