import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from inference.errors import ModelFileError, UnsupportedModelError
from inference.request import ChatMessage
from inference.text.chat_template import ChatTemplate
from inference.text.prompt import build_prompt
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_folder import chat_template_from_folder, tokenizer_from_folder
from inference.text.vocabulary import BYTE_ALPHABET
from tests.inference.family_templates import CHATML, PHI3
from tests.inference.text_models import write_folder

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello")]
TEXTS = ["hello hello", " hello", "a  b\n\nc", "日本 👍🏽", "he<b>llo</b>", ""]


def byte_level(**post: Any) -> tokenizers.Tokenizer:
    """As Qwen's and Llama 3's files: byte-level, control tokens, and added ones that are text."""
    names = [*BYTE_ALPHABET, *("".join(pair) for pair in MERGES)]
    core = tokenizers.Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, MERGES))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<|bos|>", "<|im_start|>", "<|im_end|>"])
    core.add_tokens([AddedToken(n, normalized=False) for n in ("<think>", "</think>", "<b>", "é ")])
    if post:
        core.post_processor = processors.TemplateProcessing(**post)
    return core


def sentence(where: str) -> tokenizers.Tokenizer:
    """As Llama 2's files (prefix by the normaliser) and Mistral's (by the pre-tokenizer)."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    names += ["▁", *"helo", "he", "ll", "hell", "hello", "▁hello"]
    merges = [*MERGES[:4], ("▁", "hello")]
    core = tokenizers.Tokenizer(
        models.BPE(
            {n: i for i, n in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True
        )
    )
    strip = [decoders.Strip(" ", 1, 0)]
    if where == "normalizer":
        core.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    elif where == "never":
        core.normalizer = normalizers.Replace(" ", "▁")
        strip = []
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=where, split=False)
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    core.add_special_tokens(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    return core


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.vocabulary.piece(n) for n in ids]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_folder_encodes_as_transformers(tmp_path: Path, text: str) -> None:
    core = byte_level()
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, core))
    assert tokenizer.encode_text(text) == core.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


@pytest.mark.parametrize("where", ["normalizer", "always", "first", "never"])
@pytest.mark.parametrize("text", [*TEXTS[:4], "<s>hello</s>hello hello[INST] hello[/INST]"])
def test_sentence_folder_encodes_markup_as_transformers(
    tmp_path: Path, where: str, text: str
) -> None:
    core = sentence(where)
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, core))
    assert tokenizer.encode_markup(text) == core.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("where", ["normalizer", "always", "first", "never"])
@pytest.mark.parametrize("text", TEXTS)
def test_sentence_folder_decodes_as_transformers(tmp_path: Path, where: str, text: str) -> None:
    core = sentence(where)
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, core))
    ids = tokenizer.encode_text(text)
    assert tokenizer.decode(ids) == core.decode(ids)


def test_typed_markup_stays_characters(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, byte_level()))
    text = "<|bos|><|im_start|>x<think><|im_end|></think><b>é "
    ids = tokenizer.encode_text(text)
    assert not set(ids) & set(tokenizer.markup_tokens.values())
    assert pieces(tokenizer, ids)[-2:] == ["<b>", "é "]
    assert tokenizer.decode(ids) == text
    assert sorted(tokenizer.control_tokens) == ["<|bos|>", "<|im_end|>", "<|im_start|>"]
    assert sorted(tokenizer.markup.visible) == ["</think>", "<think>"]


def test_typed_sentence_markup_stays_characters(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, sentence("first")))
    text = "<s>hello</s>[INST]<unk>"
    ids = tokenizer.encode_text(text)
    assert not set(ids) & set(tokenizer.control_tokens.values())
    assert tokenizer.decode(ids) == text


def test_token_that_only_the_config_calls_special_is_control(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"264": {"content": "<b>", "special": True}}}
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, byte_level(), tokenizer_config=config))
    assert "<b>" in tokenizer.control_tokens


def test_unigram_folder_works(tmp_path: Path) -> None:
    vocab = [("<unk>", 0.0), ("</s>", -1.0), ("▁", -2.0), ("▁he", -2.0), ("llo", -2.0), ("h", -9.0)]
    core = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.add_special_tokens(["<unk>", "</s>"])
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, core))
    assert pieces(tokenizer, tokenizer.encode_text("hello hello")) == ["▁he", "llo", "▁he", "llo"]
    assert tokenizer.decode(tokenizer.encode_text("hello hello")) == "hello hello"
    assert not {0, 1} & set(tokenizer.encode_text("hello</s>?"))


def test_border_ids_come_from_all_files(tmp_path: Path) -> None:
    core = byte_level()
    folder = write_folder(
        tmp_path,
        core,
        tokenizer_config={"bos_token": {"content": "<|bos|>"}, "eos_token": "<b>"},
        generation_config={"eos_token_id": [7, core.token_to_id("<|im_end|>")]},
    )
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|bos|>", "<b>")
    assert tokenizer.eos_ids == {7, core.token_to_id("<|im_end|>"), core.token_to_id("<b>")}
    assert not tokenizer.add_bos


def test_border_ids_fall_back_to_map_and_model_config(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        byte_level(),
        special_tokens_map={"bos_token": "<|bos|>"},
        config={"bos_token_id": 1, "eos_token_id": 9},
    )
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.bos_token == "<|bos|>"
    assert tokenizer.eos_token == tokenizer.vocabulary.piece(9)
    assert 9 in tokenizer.eos_ids


@pytest.mark.parametrize(
    ("config", "adds"),
    [({}, True), ({"add_bos_token": False}, False), ({"add_bos_token": None}, True)],
)
def test_bos_is_added_as_the_post_processor_does_unless_the_config_says(
    tmp_path: Path, config: dict[str, object], adds: bool
) -> None:
    core = byte_level(single="<|bos|> $A", special_tokens=[("<|bos|>", 261)])
    assert core.token_to_id("<|bos|>") == 261
    folder = write_folder(tmp_path, core, tokenizer_config={"bos_token": "<|bos|>", **config})
    assert tokenizer_from_folder(folder).add_bos is adds


def test_tokens_that_swallow_space_do_so(tmp_path: Path) -> None:
    core = byte_level()
    core.add_special_tokens(
        [AddedToken(n, rstrip=True) for n in ("<|user|>", "<|assistant|>", "<|end|>")]
    )
    tokenizer = tokenizer_from_folder(write_folder(tmp_path, core))
    oracle = PreTrainedTokenizerFast(tokenizer_object=core)
    turns = [("user", "hello"), ("assistant", "hello\n"), ("user", "\n  he")]
    prompt = build_prompt(
        [ChatMessage(role, text) for role, text in turns],  # type: ignore[arg-type]
        template=ChatTemplate(PHI3, "", ""),
        tokenizer=tokenizer,
    )
    assert list(prompt.token_ids) == oracle.apply_chat_template(
        [{"role": role, "content": text} for role, text in turns],
        chat_template=PHI3,
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )


def content_of(core: tokenizers.Tokenizer) -> dict[str, Any]:
    content = json.loads(core.to_str())
    assert isinstance(content, dict)
    return content


BROKEN: list[tuple[bytes, str]] = [
    (b"", "It is empty"),
    (b"{", "not valid JSON"),
    (b"[]", "no JSON object"),
    (b"\xff\xfe", "not text in UTF-8"),
    (b"<!DOCTYPE html><html>404</html>", "a web page, not JSON"),
    (b"version https://git-lfs.github.com/spec/v1\noid", "a pointer of Git LFS"),
    (b"[" * 100_000, "nested too deeply"),
    (b"{}", "no vocabulary"),
    (b'{"model": {"type": "BPE", "vocab": 3}}', "no vocabulary"),
    (b'{"model": {"type": "BPE", "vocab": {"a": 0}}}', "describes no tokenizer"),
    (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "describes no tokenizer"),
    (b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "vocabulary has 0 ids"),
    (b'{"model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}}', "4,000,000,001 ids"),
    (b'{"model": {"vocab": {}}, "added_tokens": 3}', "no list of objects"),
    (b'{"model": {"vocab": {}}, "added_tokens": [{"id": 1}]}', "no text or no id"),
    (b'{"model": {"vocab": {}}, "added_tokens": [{"id": -1, "content": "a"}]}', "no text or no id"),
]


@pytest.mark.parametrize(("data", "reason"), BROKEN)
def test_broken_tokenizer_json_names_file_and_reason(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(ModelFileError, match=rf"^tokenizer\.json: .*{reason}"):
        tokenizer_from_folder(tmp_path)


def test_missing_tokenizer_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"^tokenizer\.json: The file is missing") as raised:
        tokenizer_from_folder(tmp_path)
    assert raised.value.hint


def test_huge_tokenizer_json_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(300 * 2**20)  # a hole: takes no room on the disk
    with pytest.raises(ModelFileError, match=r"314,572,800 bytes"):
        tokenizer_from_folder(tmp_path)


def test_tokenizer_json_that_is_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ModelFileError, match=r"^tokenizer\.json: It cannot be read"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel"])
def test_other_kinds_of_tokenizer_are_unsupported(tmp_path: Path, kind: str) -> None:
    data = json.dumps({"model": {"type": kind, "vocab": {"a": 0}}})
    (tmp_path / "tokenizer.json").write_text(data)
    with pytest.raises(UnsupportedModelError, match=kind):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    "name", ["tokenizer_config", "special_tokens_map", "generation_config", "config"]
)
def test_broken_file_beside_it_is_named(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path, byte_level())
    (tmp_path / f"{name}.json").write_text("{broken")
    with pytest.raises(ModelFileError, match=rf"^{name}\.json: It is not valid JSON"):
        tokenizer_from_folder(tmp_path)


def test_odd_values_beside_it_are_ignored(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        byte_level(),
        tokenizer_config={"bos_token": 3, "eos_token": ["x"], "added_tokens_decoder": [1]},
        generation_config={"eos_token_id": ["x", True, -1, None]},
    )
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_token) == (None, "")
    assert pieces(tokenizer, list(tokenizer.eos_ids)) == ["<|im_end|>"]


def test_old_form_of_metaspace_is_understood(tmp_path: Path) -> None:
    core = sentence("always")
    content = content_of(core)
    content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    content["decoder"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    tokenizer = tokenizer_from_folder(tmp_path)
    assert pieces(tokenizer, tokenizer.encode_text("hello")) == ["▁hello"]
    assert tokenizer.decode(tokenizer.encode_text("hello")) == "hello"


def test_chat_template_is_found_where_folders_keep_it(tmp_path: Path) -> None:
    assert chat_template_from_folder(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": CHATML}))
    assert chat_template_from_folder(tmp_path) == CHATML
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}, 3]
    config.write_text(json.dumps({"chat_template": named}))
    assert chat_template_from_folder(tmp_path) == "D"
    config.write_text(json.dumps({"chat_template": named[:1]}))
    assert chat_template_from_folder(tmp_path) == "T"
    config.write_text(json.dumps({"chat_template": 3}))
    assert chat_template_from_folder(tmp_path) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert chat_template_from_folder(tmp_path) == "J"
    (tmp_path / "chat_template.jinja").write_text("{{ 'jinja' }}")
    assert chat_template_from_folder(tmp_path) == "{{ 'jinja' }}"
