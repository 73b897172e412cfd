"""A text classifier: an encoder, fine-tuned, with a linear head. Frozen encoders: see `embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from focusfl.models.embeddings import embed, find, load_encoder, mean_over_tokens, tokenise
from focusfl.util.errors import require

Pooling = Literal["auto", "cls", "mean"]
EVAL_ROWS = 64  # texts in one pass where no gradient is needed


def text_classifier(
    encoder: str | Path | None = None, classes: int = 2, pooling: Pooling = "auto", dropout: float = 0.0
) -> nn.Module:
    """Token ids [n, L] -> [n, classes]. All weights are trained, the head is drawn at random.

    encoder  a folder, or a name on the Hugging Face hub ("bert-base-uncased", the paper's); by default the
             packaged MiniLM, which is small and already tuned on sentences: not plain BERT
    pooling  what the head sees: "cls", the first token, as the paper's BERT; "mean" over the tokens, as
             sentence encoders were trained; "auto": mean where the folder says it is a sentence encoder
    dropout  off: the E step and the M step then see the same function, and the numbers do not depend on a
             stream of random draws. (With it a rerun is still the same: draws come from seed, round and agent)
    """
    require("classes", classes, classes >= 2, "2 or more")
    require("pooling", pooling, pooling in ("auto", "cls", "mean"), "auto, cls or mean")
    require("dropout", dropout, 0 <= dropout < 1, "from 0 to below 1")
    where = find(encoder)
    if pooling == "auto":
        means = encoder is None or (isinstance(where, Path) and (where / "1_Pooling").is_dir())  # MiniLM does
        pooling = "mean" if means else "cls"
    body = load_encoder(where)
    for layer in body.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = dropout
    return TextClassifier(body, classes, pooling)


class TextClassifier(nn.Module):
    """Encoder, pooling, linear head. Padding is masked; it does not change the answer."""

    def __init__(self, encoder: nn.Module, classes: int, pooling: Literal["cls", "mean"]) -> None:
        super().__init__()
        config: Any = encoder.config
        self.encoder, self.pooling, self.pad = encoder, pooling, int(config.pad_token_id)
        self.head = nn.Linear(int(config.hidden_size), classes)

    def forward(self, ids: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return self._answer(ids)
        return torch.cat([self._answer(part) for part in ids.split(EVAL_ROWS)])

    def _answer(self, ids: Tensor) -> Tensor:
        mask = (ids != self.pad).long()
        hidden: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state  # [n, L, D]
        seen = hidden[:, 0] if self.pooling == "cls" else mean_over_tokens(hidden, mask)
        out: Tensor = self.head(seen)
        return out

    def extra_repr(self) -> str:
        return f"pooling={self.pooling}"


__all__ = ["TextClassifier", "embed", "text_classifier", "tokenise"]
