"""Conversations, and the templates and tokenizers of families, for tests of prompts."""

from pathlib import Path

from inference.request import ChatMessage
from inference.text.chat_template import ChatTemplate
from inference.text.tokenizer import Tokenizer
from tests.inference import family_templates as families
from tests.inference.text_models import family_tokenizer, starter_metadata, starter_tokenizer

BOS_OF = {
    "LLAMA3": "<|begin_of_text|>",
    "MISTRAL": "<s>",
    "GEMMA": "<bos>",
}
FAMILIES = ["CHATML", "LLAMA3", "MISTRAL", "GEMMA", "QWEN3", "PHI3"]


def chat(*turns: str) -> list[ChatMessage]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [ChatMessage(roles[turn[0]], turn[2:]) for turn in turns]  # type: ignore[arg-type]


def starter_template(path: Path) -> ChatTemplate:
    tokenizer = starter_tokenizer(path)
    source = starter_metadata(path)["tokenizer.chat_template"]
    return ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token)


def family(path: Path, name: str) -> tuple[ChatTemplate, Tokenizer]:
    tokenizer = family_tokenizer(path, bos=BOS_OF.get(name))
    return ChatTemplate(getattr(families, name), tokenizer.bos_token, "</s>"), tokenizer


def family_or_starter(path: Path, name: str) -> tuple[ChatTemplate, Tokenizer]:
    if name == "STARTER":
        return starter_template(path), starter_tokenizer(path)
    return family(path, name)


def unusual_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids that say the text letter by letter, as no tokenizer would write it."""
    ids = tuple(n for char in text for n in tokenizer.encode_text(char, after="text"))
    assert list(ids) != tokenizer.encode_text(text)
    return ids
