"""captune: adapt CLIP to your own images, without labels."""
