"""From a conversation to a prompt. Pure Python; engine thread.

The template sees the real contents, prepared with noncharacters (`prompt_marks`) that tell afterwards
which characters came from a person, from a model, and from the template itself.

    contents -> prepared -> template -> text -> cut at replies with known ids -> ids (`prompt_writer`)

Spaces: some templates write "[/INST] " before an old reply but end a prompt with "[/INST]". The
known ids were sampled right after the latter, so the space is left out before them.
"""

from collections.abc import Sequence

from inference.errors import ChatTemplateError, InvalidRequestError
from inference.request import ChatMessage
from inference.text.chat_template import ChatTemplate
from inference.text.prompt_marks import Cut, Preparation, content_ends, cut, to_search
from inference.text.prompt_writer import Prompt, PromptWriter
from inference.text.tokenizer import Tokenizer

__all__ = ["Prompt", "build_plain_prompt", "build_prompt"]

_BLANK_LINE = "\n\n"


def build_prompt(
    messages: Sequence[ChatMessage], *, template: ChatTemplate, tokenizer: Tokenizer
) -> Prompt:
    """The prompt of a conversation, ending where the reply begins.

    Markup of the template becomes control tokens; contents never do. Replies with known token ids
    go in as those ids, so that a prompt begins with exactly the prompt and reply before it, unless
    the template itself changes old replies (then their text is used). What stands between them goes
    in as the ids that messages bring as their parts, where the text is the same. Exactly one BOS.

    Raises:
        ChatTemplateError: The template fails or exceeds its bounds.
        InvalidRequestError: There are no messages.
    """
    _check_not_empty(messages)
    preparation = Preparation(tokenizer)
    prepared = [preparation.prepare(n, message) for n, message in enumerate(messages)]
    rendered = template.render(prepared)
    drops_space = messages[-1].role != "assistant" and not rendered.endswith(" ")
    found = cut(rendered, prepared)
    marked = _marked(messages, template, preparation)
    if drops_space:
        found, marked = found.without_last_space(), marked and marked.without_last_space()
    if marked is not None and marked.without_stops() != found:
        marked = None
    contents = [to_search(message) for message in prepared]
    writer = PromptWriter(messages, tokenizer, contents=contents, has_markup=True)
    for n, (text, indices) in enumerate(found.stretches(len(messages))):
        ends = [] if marked is None else content_ends(marked.texts[n], indices)
        writer.add_text(text, indices, ends)
        if n < len(found.replies):
            writer.add_reply(found.replies[n])
    return writer.finish()


def build_plain_prompt(messages: Sequence[ChatMessage], tokenizer: Tokenizer) -> Prompt:
    """The prompt of a conversation without any template: the contents, blank lines between.

    For models that only continue text. Known ids are used as they are; exactly one BOS.

    Raises:
        InvalidRequestError: There are no messages.
    """
    _check_not_empty(messages)
    writer = PromptWriter(messages, tokenizer, contents=(), has_markup=False)
    text, first = "", 0
    ends: list[tuple[int, int]] = []
    for n, message in enumerate(messages):
        text += _BLANK_LINE if n else ""
        if message.role == "assistant" and message.token_ids:
            writer.add_text(text, range(first, n), ends)
            writer.add_reply(n)
            text, first, ends = "", n + 1, []
        else:
            text += message.content
            ends.append((n, len(text)))
    writer.add_text(text, range(first, len(messages)), ends)
    return writer.finish()


def _marked(
    messages: Sequence[ChatMessage], template: ChatTemplate, preparation: Preparation
) -> Cut | None:
    """The conversation with marks at the ends of contents; None if the template refuses them."""
    prepared = [
        preparation.prepare(n, message, marks_end=True) for n, message in enumerate(messages)
    ]
    try:
        return cut(template.render(prepared), prepared)
    except ChatTemplateError:
        return None


def _check_not_empty(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise InvalidRequestError("messages", "must hold at least one message.")
