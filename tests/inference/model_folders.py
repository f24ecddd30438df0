"""Writes small Hugging Face folders: a tiny model as safetensors, with a byte-level tokenizer."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel

from tests.inference.gguf_files import CHAT_TEMPLATE

CONTROL = ("<pad>", "<s>", "</s>")


def write_folder(module: PreTrainedModel, path: Path, *, max_shard_size: str = "5GB") -> Path:
    """Save the model, in several files if it is larger than `max_shard_size`."""
    module.save_pretrained(path, max_shard_size=max_shard_size)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {name: index for index, name in enumerate([*CONTROL, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return path


def edit_config(folder: Path, **changes: object) -> None:
    """Set values of its config.json."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text("utf-8")), **changes}
    path.write_text(json.dumps(config), "utf-8")
