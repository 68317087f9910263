"""The audit: what a model makes of images and names before anything is trained."""
