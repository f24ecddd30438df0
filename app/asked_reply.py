"""The reply that `ask` makes: from the engine to the chat and to standard output. No Qt; main thread."""

import logging
import time
from collections.abc import Mapping

from app.asked_chat import AskedChat
from app.asked_reading import ReadingLine
from app.asked_room import with_room
from app.breaking_off import Interrupts
from app.chat_prompt import ChatPrompt
from app.cli import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    complain,
    output_exit_code,
    write_out,
)
from app.context_room import Shortened
from app.conversation import Message, MessageId
from app.engine_like import EngineLike
from app.errors import StorageError
from app.failures import failure_from
from app.live_reply import LiveReply
from app.messages import PromptRead, ReplyEnded, ReplyId, ReplyProgressed
from inference.config import SamplingParams
from inference.errors import EngineError
from inference.metrics import RequestMetrics
from inference.request import FinishReason, GenerateRequest, PromptPart, RequestId, StepOutput

logger = logging.getLogger(__name__)

REPLY_ID = ReplyId(1)  # there is only one


class AskedReply:
    """One reply on its way from the engine to the chat and to standard output.

    Args:
        engine: The open model.
        chat: Where the reply is kept.
        live: The reply.
        prompt: What it answers.
        is_streaming: Whether its text is written as it comes.

    Attributes:
        finish_reason: Why it ended.
    """

    def __init__(
        self,
        engine: EngineLike,
        chat: AskedChat,
        live: LiveReply,
        prompt: ChatPrompt,
        *,
        is_streaming: bool,
    ) -> None:
        self.finish_reason: FinishReason = "aborted"
        self._engine = engine
        self._chat = chat
        self._live = live
        self._prompt = prompt
        self._is_streaming = is_streaming
        self._unread: Shortened | None = None
        self._reading = ReadingLine()
        self._is_ended = False
        self._unstored: Message | None = None  # what the store refused last
        self._unstored_parts: Mapping[MessageId, PromptPart] = {}
        self._refusal: StorageError | None = None

    def run(self, params: SamplingParams) -> int:
        """Make the whole reply; returns the exit code. Whatever ends it, what came is kept.

        A store that refuses something does not end it.
        """
        info = self._engine.info
        if not info.has_chat_template:
            complain(f"{info.name} has no chat template that Quire can use; it continues the text.")
        try:
            code = self._make(self._request(params))
            if self._is_streaming and code == EXIT_OK:
                write_out("\n")
        except KeyboardInterrupt:
            self._end("aborted", self._live.metrics)
            code = EXIT_INTERRUPTED
        except BrokenPipeError as error:
            code = output_exit_code(error)
        except EngineError as error:
            self._end("error", self._live.metrics, error)
            self._is_stored_at_last()
            raise
        return code if self._is_stored_at_last() else code or EXIT_FAILED

    def _make(self, request: GenerateRequest) -> int:
        """Make it step by step, until it ends or is broken off; returns the exit code."""
        with Interrupts() as interrupts:
            request_id = self._engine.add_request(request)
            try:
                while self._engine.has_work and not interrupts.exit_code:
                    self._step(request_id)
                if interrupts.exit_code:
                    self._break_off(request_id)
            except BrokenPipeError:
                if not interrupts.exit_code:
                    raise  # else the terminal was closed: the signal says it, and the output fails too
            finally:
                self._reading.clear()
            return interrupts.exit_code

    def _step(self, request_id: RequestId) -> None:
        for output in self._engine.step():
            if output.request_id != request_id:
                continue
            try:
                self._take(output)
            except BrokenPipeError:
                self._is_streaming = False
                self._break_off(request_id)
                raise

    def _break_off(self, request_id: RequestId) -> None:
        """End it between two steps: what was computed is kept, of a prompt that is half read too."""
        if self._is_ended:
            return
        self._engine.abort(request_id)
        self._step(request_id)
        self._end("aborted", self._live.metrics)  # if the engine had no last word

    def _request(self, params: SamplingParams) -> GenerateRequest:
        """The request, without the oldest turns if the chat is full and the person chose so."""
        kept = self._unread = with_room(self._engine, self._prompt)
        left_out = self._prompt.left_out_with(kept.left_out)
        if left_out:
            complain(f"the chat is full; messages left out, oldest first: {left_out}.")
        return GenerateRequest(
            self._live.conversation_id,
            messages=kept.messages,
            params=params,
            plain_text=not self._engine.info.has_chat_template,
            keep_on_disk=self._chat.is_kept,
            has_left_out=left_out > 0,
        )

    def _take(self, output: StepOutput) -> None:
        now = time.time()
        self._read(output)
        if output.text or output.metrics.completion_tokens:
            self._reading.clear()
        else:
            self._reading.show(output.prefilled_tokens, output.metrics.prompt_tokens)
        self._live.grow(
            ReplyProgressed(
                REPLY_ID,
                output.text,
                output.token_ids,
                output.prefilled_tokens,
                output.metrics,
                output.is_all_shown,
            ),
            now,
        )
        if output.error is not None:
            raise output.error
        if output.finish_reason is not None:
            self._end(output.finish_reason, output.metrics, token_ids=output.reply_token_ids)
        elif (due := self._live.due(now)) is not None:
            self._store(due)
        if self._is_streaming and output.text:
            write_out(output.text)

    def _read(self, output: StepOutput) -> None:
        """Note, once, what was left out, and keep the ids of the prompt."""
        kept, self._unread = self._unread, None
        if kept is None:
            return
        event = PromptRead(
            REPLY_ID, kept.parts(output.prompt_parts), self._prompt.left_out + kept.left_out
        )
        self._unstored_parts = self._live.read(event)
        self._store(None)

    def _end(
        self,
        reason: FinishReason,
        metrics: RequestMetrics,
        error: EngineError | None = None,
        token_ids: tuple[int, ...] | None = None,
    ) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self.finish_reason = reason
        failure = None if error is None else failure_from(error)
        self._store(self._live.ended(ReplyEnded(REPLY_ID, reason, metrics, failure, token_ids)))

    def _store(self, message: Message | None) -> None:
        """Store the reply as it is now, and ids that are not stored yet; a refusal is noted.

        All of it is offered again with the next text that is due, and at the end.
        """
        self._unstored = message
        try:
            if message is not None:
                self._chat.save(message)
                self._unstored = None
            if self._unstored_parts:
                self._chat.set_parts(self._unstored_parts, self._engine.info.fingerprint)
        except StorageError as error:
            if self._refusal is None:
                logger.warning("A reply could not be stored yet: %s", error)
            self._refusal = error
        else:
            self._unstored_parts, self._refusal = {}, None

    def _is_stored_at_last(self) -> bool:
        """Whether all is stored that was to be, after one more try; says so if it is not."""
        if self._unstored is not None:
            self._store(self._unstored)
        error = self._refusal
        if self._unstored is None or error is None:
            return True
        complain(f"this answer could not be kept in its chat. {error} {error.hint}".strip())
        return False
