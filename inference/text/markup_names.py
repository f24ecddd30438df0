"""Which token strings are chat markup, and which of them end a turn. Pure Python; any thread.

Model files say for each special token that it is special, but not all of them say it of all: files
exist where `<start_of_turn>` or `<|im_end|>` is listed as a plain added token. Such a token would
be typeable, so the name decides as well.
"""

import re
from collections.abc import Iterable, Mapping

from inference.text.channels import has_messages

# Between angle brackets and bars, in any language's bars: <|im_start|>, <｜User｜>.
_BARRED = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
# Between a bracket with a bar and one without, as Gemma 4 opens and closes: <|turn>, <turn|>.
_HALF_BARRED = re.compile(r"<\|[a-z_]+>|<[a-z_]+\|>")
# Upper-case words in square brackets, as Mistral writes them: [INST], [/TOOL_RESULTS].
_BRACKETED = re.compile(r"\[/?[A-Z][A-Z_]*\]")
_STRUCTURE = re.compile(r"</?(s|bos|eos|pad|unk|mask|start_of_turn|end_of_turn)>")
_CONTROL = (_BARRED, _HALF_BARRED, _BRACKETED, _STRUCTURE)
# What a model writes as a part of its reply: thoughts and calls of tools.
_VISIBLE = re.compile(r"</?(think|thinking|tool_call|tool_calls|tool_response|tools?|answer)>")

END_OF_TURN = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>"),
        *("</s>", "<|end_of_text|>", "<|eot|>", "<|return|>", "<|END_OF_TURN_TOKEN|>", "<eos>"),
        *("<|end_of_turn|>", "<|end_of_sentence|>", "<｜end▁of▁sentence｜>", "<|EOT|>"),
        *("<|endofturn|>", "[|endofturn|]", "<|user|>", "<turn|>", "<|tool_response>"),
    }
)
_THOUGHTS = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


def is_control_name(piece: str) -> bool:
    """Whether an added token with this string is structure, even if its file does not say so."""
    return any(known.fullmatch(piece) for known in _CONTROL)


def is_visible_name(piece: str) -> bool:
    """Whether it is structure that belongs to the reply's text: `<think>`, `<tool_call>`."""
    return bool(_VISIBLE.fullmatch(piece))


def end_ids(names: Mapping[str, int], told: Iterable[int | None]) -> frozenset[int]:
    """All ids that end a reply.

    Args:
        names: String to id of tokens that may be among them.
        told: Those that the model's files call so, as far as they do.
    """
    ends = {token_id for token_id in told if token_id is not None}
    ends |= {token_id for name, token_id in names.items() if name in END_OF_TURN}
    if not has_messages(names):
        return frozenset(ends)
    if "<|call|>" in names:  # it waits for an answer
        ends.add(names["<|call|>"])
    of_replies = ends - {names.get("<|end|>")}  # which ends a message, and the reply goes on
    return frozenset(of_replies or ends)


def without_thoughts(text: str) -> str:
    """A reply's text without what the model thought before it."""
    return _THOUGHTS.sub("", text)
