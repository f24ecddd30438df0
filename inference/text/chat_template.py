"""Writes a conversation in the form that a model was trained on. Pure Python; engine thread."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jinja2

from inference.errors import ChatTemplateError, as_sentence
from inference.request import ChatMessage
from inference.text.message_shape import MessageShape, shape_messages
from inference.text.template_bounds import HINT, Budget, TemplateBoundsError
from inference.text.template_sandbox import ChatEnvironment, TemplateRaisedError

logger = logging.getLogger(__name__)

MAX_SOURCE_CHARS = 200_000  # five times the longest known one; bounds the time to compile
_MIN_BUDGET_CHARS = 16_000_000
_BUDGET_PER_CHAR = 64

# What a faulty template may end in, besides jinja2's own errors. `Exception` would hide our faults.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # RecursionError too
    StopIteration,
    SyntaxError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One model's chat template, ready to use.

    Attributes:
        source: The template's text.
    """

    def __init__(
        self, source: str, bos_token: str, eos_token: str, *, max_seconds: float = 1.0
    ) -> None:
        """Compile the template.

        Args:
            source: Jinja2, as in `tokenizer.chat_template` of a model file.
            bos_token: What the template's variable of that name says; may be "".
            eos_token: Likewise.
            max_seconds: Most time for one rendering.

        Raises:
            ChatTemplateError: It is no jinja2, or too long.
        """
        self.source = source
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._max_seconds = max_seconds
        self._shape: MessageShape | None = None
        if len(source) > MAX_SOURCE_CHARS:
            raise ChatTemplateError(
                f"The model's chat template has {len(source):,} characters, "
                f"more than {MAX_SOURCE_CHARS:,}.",
                hint=HINT,
            )
        self._environment = ChatEnvironment(self._budget(0))
        with _readable_failures():
            self._template = self._environment.compile_bounded(source)

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> str:
        """The conversation as one text, markup included.

        Where the template refuses (or silently drops) system messages, two turns of one role, or a
        beginning that is not the user's, the messages are merged until it does not.

        Args:
            messages: In order; token ids are not looked at.
            add_generation_prompt: Whether the text ends with the beginning of a reply.

        Raises:
            ChatTemplateError: The template fails for another reason, or exceeds its bounds.
        """
        shaped = shape_messages(messages, self.shape)
        try:
            return self._render(shaped, add_generation_prompt, as_parts=self.shape.as_parts)
        except TemplateBoundsError:
            raise
        except ChatTemplateError:
            strict = shape_messages(messages, MessageShape.strictest(self.shape.as_parts))
            if strict == shaped:
                raise
            return self._render(strict, add_generation_prompt, as_parts=self.shape.as_parts)

    @property
    def shape(self) -> MessageShape:
        """What the template takes; found out once, by rendering a few tiny conversations."""
        if self._shape is None:
            self._shape = self._probe_shape()
            logger.info("Chat template: %s", self._shape)
        return self._shape

    def _probe_shape(self) -> MessageShape:
        as_parts = not self._shows("user", as_parts=False) and self._shows("user", as_parts=True)
        return MessageShape(
            takes_system=self._shows("system", "user", as_parts=as_parts),
            takes_repeats=self._shows("user", "user", as_parts=as_parts),
            takes_late_system=self._shows("user", "assistant", "system", "user", as_parts=as_parts),
            takes_assistant_first=self._shows("assistant", "user", as_parts=as_parts),
            as_parts=as_parts,
        )

    def _shows(self, *roles: str, as_parts: bool) -> bool:
        """Whether each message of such a conversation reaches the rendered text."""
        probes = [ChatMessage(role, f"Probe{n}Qx{n}") for n, role in enumerate(roles)]  # type: ignore[arg-type]
        try:
            text = self._render(probes, True, as_parts=as_parts)
        except TemplateBoundsError:
            raise
        except ChatTemplateError:
            return False
        return all(probe.content in text for probe in probes)

    def _render(
        self, messages: Sequence[ChatMessage], add_generation_prompt: bool, *, as_parts: bool
    ) -> str:
        size = sum(len(message.content) for message in messages)
        self._environment.budget = self._budget(size)
        dicts = [_as_dict(message, as_parts) for message in messages]
        with _readable_failures():
            return self._template.render(
                messages=dicts,
                add_generation_prompt=add_generation_prompt,
                bos_token=self._bos_token,
                eos_token=self._eos_token,
                tools=None,
                documents=None,
            )

    def _budget(self, num_chars: int) -> Budget:
        return Budget(self._max_seconds, max(_MIN_BUDGET_CHARS, num_chars * _BUDGET_PER_CHAR))


def _as_dict(message: ChatMessage, as_parts: bool) -> dict[str, object]:
    if as_parts:
        return {"role": message.role, "content": [{"type": "text", "text": message.content}]}
    return {"role": message.role, "content": message.content}


@contextmanager
def _readable_failures() -> Iterator[None]:
    try:
        yield
    except TemplateRaisedError as error:
        raise ChatTemplateError(
            f"The model's chat template refuses this conversation: {as_sentence(str(error))}",
            hint=HINT,
        ) from error
    except _TEMPLATE_FAILURES as error:
        raise ChatTemplateError(
            f"The model's chat template is faulty: {as_sentence(_reason(error))}", hint=HINT
        ) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself without end."
    if isinstance(error, MemoryError):
        return "it needs too much memory."
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return f"{str(error) or type(error).__name__}{where}"
