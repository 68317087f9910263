"""Embedding images and class texts, caching the embeddings, and scoring them."""
