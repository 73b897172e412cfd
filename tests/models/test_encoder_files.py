"""A text encoder from somewhere else is weights in safetensors; neither pickles nor code of its own are used."""

import json
from pathlib import Path

import pytest
import torch
from helpers.data import library

from focusfl.models.embeddings import load_encoder
from focusfl.util.errors import InputError


@pytest.fixture
def encoder(tmp_path) -> Path:
    """A BERT of one narrow layer."""
    transformers = library("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes)).save_pretrained(tmp_path)
    return tmp_path


def test_weights_in_a_pickle_are_refused(encoder):
    weights = load_encoder(encoder).state_dict()
    (encoder / "model.safetensors").unlink()
    torch.save(weights, encoder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"encoder = .*safetensors"):
        load_encoder(encoder)


def test_code_beside_the_weights_is_refused_without_a_question(encoder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run it"))
    config = json.loads((encoder / "config.json").read_text())
    names = {"AutoConfig": "own.OwnConfig"}
    (encoder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": names}))
    (encoder / "own.py").write_text(f"open({str(encoder / 'ran')!r}, 'w')\nclass OwnConfig: pass\n")
    with pytest.raises(InputError, match=r"encoder = .*cannot be loaded"):
        load_encoder(encoder)
    assert not (encoder / "ran").exists()
