"""The replies that the open engine makes, as the window knows them. Pure Python; engine thread."""

from collections.abc import Callable
from dataclasses import dataclass

from app.context_room import Shortened, shortened, whole
from app.engine_like import EngineLike
from app.failures import BUG, NO_MODEL, failure_from
from app.messages import Event, Failure, Generate, PromptRead, ReplyEnded, ReplyId, ReplyProgressed
from inference.errors import EngineError
from inference.metrics import RequestMetrics
from inference.request import FinishReason, GenerateRequest, RequestId, StepOutput


@dataclass(slots=True)
class _Making:
    """One reply.

    Attributes:
        prompt: What its prompt has of the messages in its Generate.
        left_out: How many of the chat's messages are not in its prompt.
        metrics: What the engine said last; None before its first output.
    """

    reply_id: ReplyId
    prompt: Shortened
    left_out: int
    metrics: RequestMetrics | None = None


class EngineReplies:
    """Turns commands into requests and their outputs into events.

    Args:
        emit: Takes each event.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._makings: dict[RequestId, _Making] = {}
        self._asked: ReplyId | None = None  # on its way into the engine

    def generate(self, engine: EngineLike | None, command: Generate) -> None:
        """Begin a reply, or say why it cannot be made."""
        if engine is None:
            self._emit(ReplyEnded(command.reply_id, "error", RequestMetrics(), NO_MODEL))
            return
        self._asked = command.reply_id
        try:
            self._add(engine, command)
        except EngineError as error:
            self._emit(ReplyEnded(command.reply_id, "error", RequestMetrics(), failure_from(error)))
        self._asked = None

    def stop(self, engine: EngineLike | None, reply_id: ReplyId) -> None:
        """End a reply after the step that comes next."""
        for request_id, making in self._makings.items():
            if making.reply_id == reply_id and engine is not None:
                engine.abort(request_id)

    def abort_all(self, engine: EngineLike) -> None:
        """End all replies now."""
        for request_id in self._makings:
            engine.abort(request_id)
        if self._makings:
            for output in engine.step():  # nothing is left to compute: only the last outputs
                self.report(output)

    def fail_all(self) -> None:
        """End all replies as failed, without the engine."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._emit(ReplyEnded(asked, "error", RequestMetrics(), BUG))
        for request_id in list(self._makings):
            self._end(request_id, "error", BUG)

    def report(self, output: StepOutput) -> None:
        """Tell what a step did for one request."""
        making = self._makings.get(output.request_id)
        if making is None:
            return  # not one of ours
        if making.metrics is None and (output.prompt_parts or making.left_out):
            parts = making.prompt.parts(output.prompt_parts)
            self._emit(PromptRead(making.reply_id, parts, making.left_out))
        making.metrics = output.metrics
        if output.text or output.token_ids or output.finish_reason is None:
            self._emit(
                ReplyProgressed(
                    making.reply_id,
                    output.text,
                    output.token_ids,
                    output.prefilled_tokens,
                    output.metrics,
                    output.is_all_shown,
                )
            )
        if output.finish_reason is not None:
            failure = None
            if output.finish_reason == "error":
                failure = BUG if output.error is None else failure_from(output.error)
            self._end(output.request_id, output.finish_reason, failure, output.reply_token_ids)

    def _add(self, engine: EngineLike, command: Generate) -> None:
        prompt = whole(command.messages)
        if command.leave_out:
            prompt = shortened(
                command.messages,
                lambda shorter: engine.measure(shorter, plain_text=command.as_plain_text),
            )
        left_out = command.left_out + prompt.left_out
        request = GenerateRequest(
            command.conversation_id,
            messages=prompt.messages,
            params=command.params,
            plain_text=command.as_plain_text,
            keep_on_disk=command.keep_on_disk,
            has_left_out=left_out > 0,
        )
        request_id = engine.add_request(request)
        self._makings[request_id] = _Making(command.reply_id, prompt, left_out)

    def _end(
        self,
        request_id: RequestId,
        reason: FinishReason,
        failure: Failure | None = None,
        token_ids: tuple[int, ...] | None = None,
    ) -> None:
        making = self._makings.pop(request_id)
        metrics = making.metrics or RequestMetrics()
        self._emit(ReplyEnded(making.reply_id, reason, metrics, failure, token_ids))
