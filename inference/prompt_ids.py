"""Which prompt a request stands for. Pure Python; engine thread."""

from collections.abc import Sequence

from inference.errors import ChatTemplateError, InvalidRequestError
from inference.request import GenerateRequest
from inference.text.chat_template import ChatTemplate
from inference.text.prompt import build_plain_prompt, build_prompt
from inference.text.prompt_writer import Prompt
from inference.text.tokenizer import Tokenizer


def make_prompt(
    request: GenerateRequest,
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    vocab_size: int,
) -> Prompt:
    """Tokenise a request, or check the ids that it brings.

    Args:
        request: Messages for the template, messages as plain text, or ready ids.
        tokenizer: The model's.
        template: The model's; None if it has none.
        vocab_size: Ids must be below.

    Returns:
        With at least one id. Ready ids have no messages, so nothing is said about any.

    Raises:
        InvalidRequestError: There is no token, or one is not in the vocabulary.
        ChatTemplateError: There is no template, or it cannot take these messages.
    """
    if request.messages is None:
        prompt = Prompt(tuple(request.prompt_token_ids or ()))
    elif request.plain_text:
        prompt = build_plain_prompt(request.messages, tokenizer)
    elif template is not None:
        prompt = build_prompt(request.messages, template=template, tokenizer=tokenizer)
    else:
        raise ChatTemplateError(
            "This model has no chat template: it can continue a text, but is not made to chat.",
            hint="Choose a model made for chats.",
        )
    field = "messages" if request.prompt_token_ids is None else "prompt_token_ids"
    if not prompt.token_ids:
        raise InvalidRequestError(field, "must hold at least one token.")
    _check_ids(field, prompt.token_ids, vocab_size)
    return prompt


def _check_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                field, f"token ids must be from 0 to {vocab_size - 1:,}, not {token_id}."
            )
