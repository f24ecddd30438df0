"""Whether what `ask` is to answer fits into the context. No Qt; main thread."""

from app.chat_prompt import ChatPrompt, chat_prompt, surely_fits
from app.context_room import Shortened, shortened, whole
from app.conversation import Conversation
from app.engine_like import EngineLike
from app.settings import Settings
from inference.errors import EngineError


def with_room(engine: EngineLike, prompt: ChatPrompt) -> Shortened:
    """A prompt without its oldest turns, if the chat is full and the person chose so.

    Raises:
        EngineError: As `EngineLike.measure`.
    """
    if not prompt.leave_out:
        return whole(prompt.messages)
    is_plain = not engine.info.has_chat_template
    return shortened(prompt.messages, lambda shorter: engine.measure(shorter, plain_text=is_plain))


def is_too_long(engine: EngineLike, chat: Conversation, general: Settings) -> bool:
    """Whether the engine would refuse the chat for its length; quick where it surely fits."""
    info, path = engine.info, chat.path()
    if surely_fits(path, settings=chat.settings, general=general, info=info):
        return False
    prompt = chat_prompt(path, settings=chat.settings, general=general, info=info)
    try:
        messages = with_room(engine, prompt).messages
        size = engine.measure(messages, plain_text=not info.has_chat_template)
    except EngineError:
        return False  # it is refused for another reason, which is kept with the question
    return size.prompt_tokens >= size.context_tokens
