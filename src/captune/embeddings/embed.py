"""Embeddings of images and class texts, and zero-shot scores from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from captune.backbones.base import Backbone
from captune.backbones.joined import Joined
from captune.core import distributed
from captune.core.arrays import (
    Bools,
    Floats,
    Ints,
    Positions,
    check_embeddings,
    empty_rows,
    score_rows,
    softmax_rows,
    take_rows,
)
from captune.core.errors import InputError
from captune.core.runtime import Runtime
from captune.data.images import ImageCollection
from captune.data.loading import load_batches
from captune.data.precomputed import Embeddings
from captune.data.views import StrongView, WeakView
from captune.data.vocabulary import Vocabulary
from captune.embeddings.cache import ROWS_PER_PART, EmbeddingCache, KnownFiles
from captune.embeddings.lazy_backbone import LazyBackbone

TEXTS_AT_ONCE = 256


@dataclass(frozen=True)
class EmbeddedImages:
    """Embeddings of length one `(images, width)` of the readable images, and why the others were skipped."""

    image_index: Positions
    """Ascending, `(images,)`."""
    vectors: Floats
    skipped: dict[int, str]


def embed_images(
    backbone: Backbone,
    images: ImageCollection,
    cache: EmbeddingCache,
    runtime: Runtime,
    batch_size: int = 32,
    strong: StrongView | None = None,
    title: str = "Embedding images",
) -> EmbeddedImages:
    """Embed the weak view of every image, or a strong one; images in the cache are not encoded again.

    Files that have not changed since they were embedded are not even read. Images that are embeddings already have one
    view, whatever is asked for.
    """
    if isinstance(backbone, Joined):
        if not len(images):
            return EmbeddedImages(Positions(np.arange(0)), np.empty((0, backbone.embed_dim), dtype=np.float32), {})
        if isinstance(images, Embeddings):
            return EmbeddedImages(Positions(np.arange(len(images))), backbone.vectors_of(images), {})
        found = []
        for part, label in ((backbone.first, title), (backbone.second, f"{title}, second encoder")):
            if part is None:
                raise InputError("This classifier was made from embeddings of two encoders. Pass captune.Embeddings.")
            other = strong and replace(strong, preprocessing=part.preprocessing)
            found.append(embed_images(part, images, cache, runtime, batch_size, other, label))
        both = np.intersect1d(found[0].image_index, found[1].image_index)
        rows = [take_rows(part.vectors, np.searchsorted(part.image_index, both)) for part in found]
        return EmbeddedImages(Positions(both), backbone.join(*rows), {**found[1].skipped, **found[0].skipped})
    if isinstance(images, Embeddings):
        if images.width != backbone.embed_dim:
            raise InputError(
                f"The embeddings have width {images.width}, but the class texts have width {backbone.embed_dim}. Use "
                "embeddings of the same model."
            )
        return EmbeddedImages(Positions(np.arange(len(images))), images.vectors, {})
    view = strong or WeakView(backbone.preprocessing)
    inputs = repr(view) + ("" if runtime.precision == "32-true" else runtime.precision)
    shard = cache.open(backbone.fingerprint(), inputs, backbone.embed_dim)
    n_images = len(images)
    # The batches do not depend on what is cached, so a resumed run computes the same bits.
    batches = [np.arange(i, min(i + batch_size, n_images)) for i in range(0, n_images, batch_size)]
    vectors = empty_rows(n_images, backbone.embed_dim)
    is_done = np.zeros(n_images, dtype=np.bool_)
    skipped, ranges = dict[int, str](), dict[int, str]()
    own = distributed.part(batches)
    with shard, KnownFiles(images, cache) as files, runtime.autocast():
        is_unread = files.are_known & (shard.known.find(files.keys) >= 0)
        chosen = np.concatenate([np.arange(0), *(batch[is_unread[batch]] for batch in own)])
        for start in range(0, len(chosen), ROWS_PER_PART):  # a part at a time: these may be large for memory
            positions = chosen[start : start + ROWS_PER_PART]
            vectors[positions] = shard.find(files.keys[positions])
        is_done[chosen] = True
        read = [batch[~is_unread[batch]] for batch in own if not is_unread[batch].all()]
        with runtime.progress(title, sum(map(len, read))) as advance:
            for batch in load_batches(images, read, view, shard.known, runtime.workers):
                encoded = encode_pixels(backbone, batch.pixels)
                vectors[batch.positions[batch.is_decoded]] = encoded
                shard.add(batch.keys[batch.is_decoded], encoded)
                is_cached = ~batch.is_decoded
                vectors[batch.positions[is_cached]] = shard.find(batch.keys[is_cached])
                is_done[batch.positions] = True
                files.remember(batch.positions, batch.keys)
                skipped.update(batch.problems)
                ranges.update(batch.ranges)
                advance(len(batch.positions) + len(batch.problems))
    if ranges and strong is None:
        first = min(ranges)
        runtime.say(
            f"{len(ranges)} images do not say which values are black and white; they were scaled by their values, the "
            f"first, {images.name(first)!r}, from {ranges[first]}. If this is wrong, save them with 8 bits."
        )
    index, skipped = merge_parts(vectors, is_done, skipped)
    return EmbeddedImages(Positions(index), take_rows(vectors, index), skipped)


def merge_parts(rows: Floats, is_done: Bools, skipped: dict[int, str]) -> tuple[Ints, dict[int, str]]:
    """Exchange rows between processes; return the positions of the readable images and why the others were skipped."""
    if distributed.size() > 1:
        distributed.merge_rows(rows, is_done)
        skipped = {p: why for part in distributed.gather(list(skipped.items())) for p, why in part}
        skipped = dict(sorted(skipped.items()))
        is_done = np.ones(len(rows), dtype=np.bool_)
        is_done[list(skipped)] = False
    return np.flatnonzero(is_done), skipped


@torch.inference_mode()
def encode_pixels(backbone: Backbone, pixels: NDArray[np.uint8]) -> Floats:
    """Encode views `(images, height, width, 3)` as embeddings `(images, width)`."""
    if len(pixels) == 0:
        return np.empty((0, backbone.embed_dim), dtype=np.float32)
    batch = backbone.preprocessing.normalize(pixels).to(backbone.device)
    return check_embeddings(backbone.encode_image(batch).float().cpu().numpy(), backbone.identifier)


def embed_texts(backbone: Backbone, texts: Sequence[str]) -> Floats:
    """Embed sentences, `(texts, width)`; a list that was embedded before comes from the cache of the backbone."""
    if isinstance(backbone, Joined):
        return backbone.padded(embed_texts(backbone.first, texts))
    if isinstance(backbone, LazyBackbone) and texts:
        return backbone.cached_texts(texts, lambda missing: _encode_texts(backbone, missing))
    return _encode_texts(backbone, texts)


@torch.inference_mode()
def _encode_texts(backbone: Backbone, texts: Sequence[str]) -> Floats:
    tokens = backbone.tokenize(texts)
    parts = [backbone.encode_text(part).cpu().numpy() for part in tokens.chunks(TEXTS_AT_ONCE)]
    return check_embeddings(np.concatenate(parts), backbone.identifier)


def embed_classes(backbone: Backbone, vocabulary: Vocabulary) -> Floats:
    """Embed every class as the mean of its sentences' embeddings, normalized to length one, `(classes, width)`."""
    texts = [vocabulary.texts(class_id) for class_id in range(len(vocabulary))]
    flat = embed_texts(backbone, [sentence for sentences in texts for sentence in sentences])
    owner = np.repeat(np.arange(len(texts)), [len(sentences) for sentences in texts])
    sums = np.zeros((len(texts), flat.shape[1]), dtype=np.float32)
    np.add.at(sums, owner, flat)
    return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), dtype=np.float32)


def classes_read_alike(backbone: Backbone, vocabulary: Vocabulary) -> list[tuple[str, ...]]:
    """Return groups of class names whose texts have the same tokens, e.g. because long texts are cut."""
    backbone = backbone.first if isinstance(backbone, Joined) else backbone
    texts = [vocabulary.texts(class_id) for class_id in range(len(vocabulary))]
    flat = [sentence for sentences in texts for sentence in sentences]
    if isinstance(backbone, LazyBackbone):  # the same tokens have the same embedding, and the cache may know it
        rows = np.round(embed_texts(backbone, flat), 4) + 0.0  # no negative zeros
    else:
        tokens = backbone.tokenize(flat)
        rows = (tokens.ids * tokens.mask).cpu().numpy()
    groups: dict[bytes, list[str]] = {}
    own = np.split(rows, np.cumsum([len(sentences) for sentences in texts])[:-1])
    for name, sentences in zip(vocabulary.names, own, strict=True):
        groups.setdefault(sentences.tobytes(), []).append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


def score(image_vectors: Floats, class_vectors: Floats, logit_scale: float) -> Floats:
    """Return CLIP's zero-shot probabilities `(images, classes)`: the softmax of scaled cosine similarities."""
    rule = np.float32(logit_scale) * class_vectors.T
    return score_rows(image_vectors, len(class_vectors), lambda rows: softmax_rows(rows @ rule))
