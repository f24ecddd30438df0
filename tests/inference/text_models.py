"""Tokenizers for the tests of `inference.text`: the starter model's, tiny ones, and an oracle."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from inference.formats.gguf import GgufFile
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_gguf import tokenizer_from_metadata
from inference.text.vocabulary import BYTE_ALPHABET

# Control tokens of many families, so that one vocabulary serves every family's template.
FAMILY_TOKENS = (
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
)
VISIBLE_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@functools.cache
def starter_metadata(path: Path) -> dict[str, Any]:
    file = GgufFile.read(path)
    metadata = dict(file.metadata)
    file.close()
    return metadata


@functools.cache
def starter_tokenizer(path: Path) -> Tokenizer:
    return tokenizer_from_metadata(starter_metadata(path), path)


@functools.cache
def family_metadata(path: Path) -> dict[str, Any]:
    """The starter's vocabulary with the control tokens of other families appended."""
    metadata = dict(starter_metadata(path))
    added = [*FAMILY_TOKENS, *VISIBLE_TOKENS]
    kinds = [3] * len(FAMILY_TOKENS) + [4] * len(VISIBLE_TOKENS)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *added]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *kinds]
    return metadata


@functools.cache
def family_tokenizer(path: Path, *, bos: str | None = None, **changes: object) -> Tokenizer:
    metadata = dict(family_metadata(path))
    if bos is not None:
        names = metadata["tokenizer.ggml.tokens"]
        metadata["tokenizer.ggml.bos_token_id"] = names.index(bos)
    metadata.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    return tokenizer_from_metadata(metadata, path)


@functools.cache
def family_oracle(path: Path) -> PreTrainedTokenizerFast:
    """transformers' tokenizer over the same vocabulary, built the way tokenizer.json files are."""
    metadata = family_metadata(path)
    names, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    vocab = {name: n for n, name in enumerate(names)}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    core.decoder = decoders.ByteLevel()
    for name, kind in zip(names, kinds, strict=True):
        if kind in (3, 4):
            core.add_tokens([AddedToken(name, special=kind == 3, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=core)


def tiny_byte_metadata(
    merges: Sequence[str] = ("a b", "ab c"),
    added: Mapping[str, int] | None = None,
    **changes: object,
) -> dict[str, object]:
    """A byte-level vocabulary: 256 bytes, what the merges make, then added tokens by kind."""
    made = [line.replace(" ", "") for line in merges]
    added = {"<|end|>": 3} if added is None else added
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*BYTE_ALPHABET, *made, *added],
        "token_type": [1] * (256 + len(made)) + list(added.values()),
        "merges": list(merges),
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def tiny_sentence_metadata(
    pieces: Sequence[str] = ("▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"),
    added: Mapping[str, int] | None = None,
    **changes: object,
) -> dict[str, object]:
    """A sentence vocabulary as Llama's: control tokens, 256 bytes, pieces that score by length."""
    added = {} if added is None else added
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *added]
    values: dict[str, object] = {
        "model": "llama",
        "tokens": names,
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces), *added.values()],
        "scores": [float(len(name)) for name in names],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def tiny_merge_metadata(
    merges: Sequence[str] = ("h e", "l l", "he ll", "hell o", "▁ hello", "\n \n"),
    added: Mapping[str, int] | None = None,
    **changes: object,
) -> dict[str, object]:
    """A sentence vocabulary as Gemma 4's, with listed merges; ends turns by <turn|>."""
    made = [line.replace(" ", "") for line in merges]
    added = {"<|turn>": 3, "<turn|>": 3, "<|channel>": 4, "<channel|>": 4, **(added or {})}
    single = dict.fromkeys(piece for line in merges for piece in line.split(" "))
    pieces = [*dict.fromkeys(("▁", *single, *made))]
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *added]
    num_control = len(names)
    names += [*(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    values: dict[str, object] = {
        "model": "gemma4",
        "tokens": names,
        "token_type": [3, 3, 3, 2, *added.values(), *[6] * 256, *[1] * len(pieces)],
        "scores": [-1000.0] * num_control + [0.0] * (256 + len(pieces)),
        "merges": list(merges),
        "bos_token_id": 2,
        "eos_token_id": 5,
        "add_space_prefix": False,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def write_folder(folder: Path, core: tokenizers.Tokenizer, **files: object) -> Path:
    """A model folder with this tokenizer and JSON files, named by their stems."""
    folder.mkdir(exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content), "utf-8")
    return folder
