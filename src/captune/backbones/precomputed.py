"""Class texts that are embedded already: an .npz file with names, texts and logit_scale, for images or embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone, Edit, Side, Tokens, fingerprint_of, load_backbone
from captune.core.errors import InputError, ModelError
from captune.core.files import digest
from captune.data.precomputed import ClassTexts
from captune.data.views import Preprocessing


class Precomputed(Backbone):
    """A table of text embeddings, beside the image encoder of another backbone or none."""

    def __init__(self, texts: ClassTexts, encoder: Backbone | None = None, identifier: str = "precomputed") -> None:
        if encoder is not None and encoder.embed_dim != texts.width:
            raise ModelError(
                f"The class texts have width {texts.width}, but {encoder.identifier!r} makes embeddings of width "
                f"{encoder.embed_dim}. Use texts of the same model."
            )
        self.encoder, self.texts = encoder, texts
        self.identifier = identifier if encoder is None else f"precomputed:{encoder.identifier}"
        no_pixels = Preprocessing(1, 0, "nearest", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        self.preprocessing = no_pixels if encoder is None else encoder.preprocessing
        self.embed_dim, self.logit_scale = texts.width, texts.logit_scale
        self.has_image_encoder = encoder is not None
        self._rows = {name: row for row, name in enumerate(texts.names)}
        self._table = nn.Embedding.from_pretrained(torch.from_numpy(texts.vectors))  # type: ignore[no-untyped-call]
        self._table.eval().requires_grad_(False)  # the encoder is frozen already

    @classmethod
    def load(cls, name: str) -> Precomputed:
        """Read the class texts in a file."""
        try:
            texts = ClassTexts.from_file(name)
        except InputError as error:
            raise ModelError(f"Cannot load 'precomputed:{name}'. {error}") from error
        return cls(texts, identifier=f"precomputed:{name}")

    @classmethod
    def prompt_towers(cls, name: str) -> frozenset[Side]:
        """Return no tower."""
        return frozenset()

    @classmethod
    def restore(cls, name: str, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Precomputed:
        """Return the texts that were saved with a classifier, with the image encoder that is part of the name."""
        if "names" in tensors:  # classes that were renamed or merged are still represented by the texts of the start
            names = json.loads(tensors["names"].numpy().tobytes())
        texts = ClassTexts(tuple(names), tensors["texts"].numpy(), tensors["logit_scale"].item())
        return cls(texts, load_backbone(name) if name else None)

    def portable_id(self) -> str:
        """Return the id with that of the image encoder."""
        return self.identifier if self.encoder is None else f"precomputed:{self.encoder.portable_id()}"

    def state(self) -> dict[str, Tensor]:
        """Return the texts, which no file may hold."""
        names = np.frombuffer(json.dumps(list(self.texts.names)).encode(), dtype=np.uint8).copy()
        return {
            "texts": torch.from_numpy(self.texts.vectors),
            "logit_scale": torch.tensor(self.logit_scale).double(),
            "names": torch.from_numpy(names),
        }

    def parts(self) -> Sequence[nn.Module | Backbone]:
        """Return the table of texts and the image encoder."""
        return (self._table,) if self.encoder is None else (self._table, self.encoder)

    def fingerprint(self) -> str:
        """Return a digest of the table and of the weights of the encoder."""
        own = fingerprint_of([self._table])
        return own if self.encoder is None else digest(f"{own} {self.encoder.fingerprint()}".encode())

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Look up the rows of class names."""
        unknown = next((text for text in texts if text not in self._rows), None)
        if unknown is not None:
            raise ModelError(
                f"No embedding of {unknown!r} among the ClassTexts. Pass class names and a backbone instead."
            )
        ids = torch.tensor([[self._rows[text]] for text in texts], device=self.device).reshape(-1, 1)
        return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))

    def text_features(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        """Return rows of the table."""
        return self._table(tokens.ids[:, 0])

    def image_features(self, pixels: Tensor, edit: Edit | None = None) -> Tensor:
        """Encode images with the image encoder, if there is one."""
        if self.encoder is None:
            raise ModelError(
                "Made from embeddings, this classifier has no image encoder: pass captune.Embeddings, or adapt again."
            )
        return self.encoder.image_features(pixels, edit)
