"""Builds a tokenizer from the files of a Hugging Face folder. Pure Python; engine thread.

tokenizer.json says how text becomes ids; the files beside it say which ids begin and end a prompt:

    tokenizer.json            vocabulary, merges, normaliser, added tokens
    tokenizer_config.json     bos_token, eos_token, add_bos_token, chat_template
    special_tokens_map.json   bos_token, eos_token, where the former lacks them
    generation_config.json    eos_token_id: all ids that end a reply
    chat_template.jinja/.json  the template, in newer folders
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers

from inference.errors import ModelFileError
from inference.text.json_file import read_json_object, read_optional_json, read_text_file
from inference.text.markup_names import end_ids, is_control_name, is_visible_name
from inference.text.tokenizer import Markup, Tokenizer, TurnTokens
from inference.text.tokenizer_json import TokenizerJson
from inference.text.vocabulary import Vocabulary

_MAX_VOCAB_SIZE = 8_000_000


def tokenizer_from_folder(path: Path | str) -> Tokenizer:
    """Build the tokenizer of a model folder.

    Raises:
        ModelFileError: A file is missing or broken; names the file.
        UnsupportedModelError: The tokenizer is of a kind that Quire does not know.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    description = TokenizerJson(file, read_json_object(file))
    config = read_optional_json(folder / "tokenizer_config.json")
    markup = _read_markup(description, config)
    core = _build_core(file, description.without_prefix_and_with_markup(markup))
    pieces = _pieces_by_id(file, core)
    literal = {*markup.control.values(), *markup.visible.values()}
    if description.is_byte_level:
        literal.update(token.token_id for token in description.added_tokens)
    return Tokenizer(
        core,
        Vocabulary(pieces, is_byte_level=description.is_byte_level, literal_ids=literal),
        markup,
        turns=_read_turns(folder, config, description, core),
        prefix=description.prefix,
    )


def chat_template_from_folder(path: Path | str) -> str | None:
    """The chat template of a model folder, or None if it has none.

    Raises:
        ModelFileError: A file that should hold it is broken.
    """
    folder = Path(path)
    file = folder / "chat_template.jinja"
    if os.path.exists(file):
        return read_text_file(file)
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = _chosen_template(read_optional_json(folder / name).get("chat_template"))
        if template is not None:
            return template
    return None


def _chosen_template(value: object) -> str | None:
    """The template itself, or of a list of named ones the one called "default", else the first."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    named = {
        item.get("name"): item["template"]
        for item in value
        if isinstance(item, dict) and isinstance(item.get("template"), str)
    }
    return named.get("default", next(iter(named.values()), None))


def _read_markup(description: TokenizerJson, config: Mapping[str, object]) -> Markup:
    """Sort the added tokens; what either file calls special, or looks like markup, is markup."""
    marked = config.get("added_tokens_decoder")
    special = {
        _content(item)
        for item in (marked.values() if isinstance(marked, dict) else ())
        if isinstance(item, dict) and item.get("special") is True
    }
    control: dict[str, int] = {}
    visible: dict[str, int] = {}
    left, right = set(), set()
    for token in description.added_tokens:
        name = token.name
        if token.is_special or name in special or is_control_name(name):
            control[name] = token.token_id
        elif is_visible_name(name):
            visible[name] = token.token_id
        else:
            continue
        if token.strips_left:
            left.add(name)
        if token.strips_right:
            right.add(name)
    return Markup(control, visible, frozenset(left), frozenset(right))


def _build_core(file: Path, description: Mapping[str, object]) -> tokenizers.Tokenizer:
    try:
        core = tokenizers.Tokenizer.from_str(json.dumps(description))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(file, f"It describes no tokenizer: {error}.") from error
    core.encode_special_tokens = True  # as plain text, that is; markup is cut out before
    return core


def _pieces_by_id(file: Path, core: tokenizers.Tokenizer) -> list[str]:
    vocab = core.get_vocab(with_added_tokens=True)
    size = max(vocab.values(), default=-1) + 1
    if not 0 < size <= _MAX_VOCAB_SIZE:
        raise ModelFileError(file, f"Its vocabulary has {size:,} ids.")
    pieces = [""] * size
    for piece, token_id in vocab.items():
        pieces[token_id] = piece
    return pieces


def _read_turns(
    folder: Path,
    config: Mapping[str, object],
    description: TokenizerJson,
    core: tokenizers.Tokenizer,
) -> TurnTokens:
    special_map = read_optional_json(folder / "special_tokens_map.json")
    generation = read_optional_json(folder / "generation_config.json")
    model = read_optional_json(folder / "config.json")

    def find(name: str) -> int | None:
        """By the token's string, else by the id in the model's configuration."""
        for source in (config, special_map):
            token = _content(source.get(f"{name}_token"))
            if token and (token_id := core.token_to_id(token)) is not None:
                return int(token_id)
        ids = _ids(generation.get(f"{name}_token_id")) or _ids(model.get(f"{name}_token_id"))
        return ids[0] if ids else None

    bos_id, eos_id = find("bos"), find("eos")
    told = {eos_id, *_ids(generation.get("eos_token_id")), *_ids(model.get("eos_token_id"))}
    names = {token.name: token.token_id for token in description.added_tokens}
    add_bos = config.get("add_bos_token")
    if not isinstance(add_bos, bool):
        add_bos = bos_id is not None and description.adds_first == bos_id
    return TurnTokens(bos_id, eos_id, end_ids(names, told), add_bos)


def _content(token: object) -> str:
    """The string of a token that is written as text or as an object; "" if it is neither."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _ids(value: object) -> list[int]:
    """One id or a list of ids as a list; [] for anything else."""
    values: Iterable[object] = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
