"""A text classifier: an encoder with a linear head, all of it fine-tuned. For a frozen encoder see `embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from focusfl.models.embeddings import embed, find_encoder, load_encoder, mean_over_tokens, tokenise
from focusfl.util.errors import require

Pooling = Literal["auto", "cls", "mean"]
EVAL_BATCH = 64  # texts in one pass when no gradient is needed


def text_classifier(
    encoder: str | Path | None = None, classes: int = 2, pooling: Pooling = "auto", dropout: float = 0.0
) -> nn.Module:
    """Make a text classifier: token ids [n, L] -> [n, classes]. All weights are trained; the head starts at random.

    Args:
        encoder: A folder, or a name on the Hugging Face hub ("bert-base-uncased" is the paper's). The default is
            the packaged MiniLM, which is small and already tuned on sentences: it is not plain BERT.
        classes: The number of classes.
        pooling: What the head sees: "cls", the first token, as in the paper's BERT; "mean", the mean over the
            tokens, as sentence encoders are trained; "auto" is "mean" if the folder is a sentence encoder's.
        dropout: The probability of dropout. At 0 the E step and the M step see the same function. Above 0 a run
            can still be repeated: the random numbers come from seed, round and agent.

    Returns:
        The network; it runs on the serial engine.

    Raises:
        InputError: An option is out of range, or the encoder cannot be found or loaded.
    """
    require("classes", classes, classes >= 2, "2 or more")
    require("pooling", pooling, pooling in ("auto", "cls", "mean"), "auto, cls or mean")
    require("dropout", dropout, 0 <= dropout < 1, "from 0 to below 1")
    location = find_encoder(encoder)
    if pooling == "auto":
        sentences = encoder is None or (isinstance(location, Path) and (location / "1_Pooling").is_dir())
        pooling = "mean" if sentences else "cls"
    body = load_encoder(location)
    for layer in body.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = dropout
    return TextClassifier(body, classes, pooling)


class TextClassifier(nn.Module):
    """Encoder, pooling and linear head. Padding is masked, so it does not change the output."""

    def __init__(self, encoder: nn.Module, classes: int, pooling: Literal["cls", "mean"]) -> None:
        super().__init__()
        config: Any = encoder.config
        self.encoder, self.pooling, self.pad = encoder, pooling, int(config.pad_token_id)
        self.head = nn.Linear(int(config.hidden_size), classes)

    def forward(self, ids: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return self._logits(ids)
        return torch.cat([self._logits(part) for part in ids.split(EVAL_BATCH)])

    def _logits(self, ids: Tensor) -> Tensor:
        mask = (ids != self.pad).long()
        hidden: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state  # [n, L, D]
        pooled = hidden[:, 0] if self.pooling == "cls" else mean_over_tokens(hidden, mask)
        out: Tensor = self.head(pooled)
        return out

    def extra_repr(self) -> str:
        return f"pooling={self.pooling}"


__all__ = ["TextClassifier", "embed", "text_classifier", "tokenise"]
