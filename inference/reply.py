"""One reply in the making: from sampled ids to text that may be shown. Engine thread only.

    id -> Sampler -> StreamDetokenizer -> EmojiFilter  -> StopStringFilter -> text of the step
                     whole code points    whole emoji     nothing of a stop string

It knows nothing of blocks and steps; the scheduler's `Sequence` has the tokens to compute.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from itertools import zip_longest

from torch import Tensor

from inference.errors import EngineError
from inference.guess_count import GuessCount, PlainStep
from inference.metrics import RequestMetrics, ReuseStop
from inference.request import FinishReason, PromptPart, StepOutput
from inference.sampling import Sampler
from inference.sequence import Sequence
from inference.text.detokenizer import StreamDetokenizer
from inference.text.emoji import EmojiFilter
from inference.text.stop_strings import StopStringFilter
from inference.text.tokenizer import Tokenizer

NO_GUESSES = PlainStep()


class Reply:
    """Text, end and times of one request's reply.

    Attributes:
        sequence: Its tokens, shared with the scheduler.
        reuse_stop: Why not more of the chat was reused, and from which message on; see
            `RequestMetrics`.
    """

    def __init__(
        self,
        sequence: Sequence,
        tokenizer: Tokenizer,
        sampler: Sampler,
        *,
        stop: tuple[str, ...],
        max_tokens: int,
        prompt_parts: tuple[tuple[int, PromptPart], ...] = (),
    ) -> None:
        """Prepare for the first token.

        Args:
            sequence: Holds the prompt.
            tokenizer: Turns ids into text.
            sampler: Fresh, for this reply alone.
            stop: The reply ends before the first of these.
            max_tokens: Most tokens of the reply, at least 1.
            prompt_parts: Told with the first output.
        """
        self.sequence = sequence
        self.reuse_stop: tuple[ReuseStop | None, int | None] = (None, None)
        self._tokenizer = tokenizer
        self._sampler = sampler
        self._detokenizer = StreamDetokenizer(tokenizer)
        self._emoji = EmojiFilter()
        self._stop_strings = StopStringFilter(stop)
        self._max_tokens = max_tokens
        self._prompt_parts = prompt_parts
        self._shown: list[str] = []
        self._num_sampled = 0
        self._guesses = GuessCount()
        self._prefill_s = 0.0
        self._began: float | None = None
        self._first_token: float | None = None
        self._last_token: float | None = None

    @property
    def num_left(self) -> int:
        """Most tokens that are still to come."""
        return self._max_tokens - self._num_sampled

    def begin(self, now: float) -> bool:
        """Note that a step which runs it begins; the first one ends its time in the queue.

        Returns:
            Whether it is the first.
        """
        is_first = self._began is None
        if is_first:
            self._began = now
        return is_first

    def prefilled(self, began: float, now: float) -> StepOutput:
        """What to say after a step that computed a part of the prompt."""
        if self._first_token is None:  # else it was preempted, and decodes
            self._prefill_s += now - began
        return self._output(now)

    def sample(
        self,
        logits: Iterable[Tensor],
        began: float,
        clock: Callable[[], float],
        *,
        draft: SequenceOf[int] = (),
        plain: PlainStep = NO_GUESSES,
    ) -> StepOutput:
        """Choose the next tokens and say what they add: one, and one more for each right guess before it.

        Each token is drawn from the model's own distribution, as it would be without guesses, with one
        random number each. A guess only says which row of logits is that of the token after it: a row
        after a wrong guess is never looked at, nor is what follows the reply's end.

        Args:
            logits: Those after the last token of the sequence, and after each guess: 1 + len(draft) rows,
                (V,), float32.
            began: When the step began.
            clock: Tells when the tokens are there.
            draft: The guesses that were computed.
            plain: What the step would have taken without guesses, of any sequence.

        Raises:
            ComputeError: The logits are not numbers.

        Source: sample-and-match is speculative sampling (Leviathan et al. 2023, "Fast Inference from
            Transformers via Speculative Decoding", algorithm 1) for a draft without chance.
        """
        texts: list[str] = []
        token_ids: list[int] = []
        reason: FinishReason | None = None
        for row, guess in zip_longest(logits, draft):
            token_id = self._sampler.sample(row)
            self.sequence.append(token_id)
            token_ids.append(token_id)
            text, reason = self._read(token_id, self._num_sampled + len(token_ids))
            texts.append(text)
            if token_id == guess:
                self._guesses.num_accepted += 1
            if token_id != guess or reason is not None:
                break
        now = clock()
        if self._last_token is None:  # what comes before decoding says nothing of its speed
            self._first_token = now
            self._prefill_s += now - began
        else:
            # It would have waited as long without guesses.
            paused_ms = max(0.0, began - self._last_token) * 1000
            self._guesses.note_step(len(draft), len(token_ids), plain, paused_ms)
        self._last_token = now
        self._num_sampled += len(token_ids)
        return self._output(now, text="".join(texts), reason=reason, token_ids=tuple(token_ids))

    def end(
        self, reason: FinishReason, now: float, *, error: EngineError | None = None
    ) -> StepOutput:
        """End it from outside; whole characters that were held back are shown after all."""
        return self._output(now, text=self._rest(), reason=reason, error=error)

    def metrics(self, now: float) -> RequestMetrics:
        """Times and counts so far."""
        arrival, first, last = self.sequence.arrival, self._first_token, self._last_token
        decode_s = last - first if first is not None and last is not None else 0.0
        return RequestMetrics(
            prompt_tokens=self.sequence.num_prompt_tokens,
            reused_tokens=self.sequence.num_reused,
            completion_tokens=self._num_sampled,
            seed=self._sampler.seed,
            reuse_stop=self.reuse_stop[0],
            queue_ms=((now if self._began is None else self._began) - arrival) * 1000,
            prefill_ms=self._prefill_s * 1000,
            ttft_ms=None if first is None else (first - arrival) * 1000,
            decode_ms=decode_s * 1000,
            e2e_ms=(now - arrival) * 1000,
            reused_ram_tokens=self.sequence.num_reused_ram,
            reused_disk_tokens=self.sequence.num_reused_disk,
            reuse_stop_message=self.reuse_stop[1],
            restore_ms=self.sequence.restore_s * 1000,
            drafted_tokens=self._guesses.num_drafted,
            accepted_tokens=self._guesses.num_accepted,
            verify_steps=self._guesses.num_steps,
            plain_token_ms=self._guesses.plain_token_ms(),
        )

    def _read(self, token_id: int, num_sampled: int) -> tuple[str, FinishReason | None]:
        """The text that a token makes safe to show, and whether the reply ends with it."""
        if token_id in self._tokenizer.eos_ids:
            return self._rest(self._detokenizer.finish()), "stop"
        text, is_hit = self._stop_strings.push(self._emoji.push(self._detokenizer.push(token_id)))
        if is_hit:
            return text, "stop"
        if num_sampled >= self._max_tokens:
            # The model had more to say, so half a character at the end is not shown.
            return text + self._rest(), "length"
        return text, None

    def _rest(self, text: str = "") -> str:
        """What the filters hold back, followed by the last `text`; nothing comes after it."""
        held, is_hit = self._stop_strings.push(self._emoji.push(text) + self._emoji.finish())
        return held if is_hit else held + self._stop_strings.finish()

    def _output(
        self,
        now: float,
        *,
        text: str = "",
        reason: FinishReason | None = None,
        token_ids: tuple[int, ...] = (),
        error: EngineError | None = None,
    ) -> StepOutput:
        self._shown.append(text)
        output = StepOutput(
            self.sequence.request_id,
            token_ids=token_ids,
            text=text,
            finish_reason=reason,
            prefilled_tokens=min(self.sequence.num_computed, self.sequence.num_prompt_tokens),
            metrics=self.metrics(now),
            error=error,
            prompt_parts=self._parts_told(),
            is_all_shown=not self._holds_back,
        )
        if reason is None:
            return output
        return replace(output, reply_token_ids=self._ids_of_shown())

    @property
    def _holds_back(self) -> bool:
        filters = (self._detokenizer, self._emoji, self._stop_strings)
        return any(each.holds_back for each in filters)

    def _parts_told(self) -> tuple[tuple[int, PromptPart], ...]:
        """With the first output; never of a prompt of which nothing was read."""
        parts, self._prompt_parts = self._prompt_parts, ()
        return parts if self._began is not None else ()

    def _ids_of_shown(self) -> tuple[int, ...]:
        """Ids that decode to exactly what was shown; in channels a mark that was cut is left out.

        They are the sampled ones, as far as they go. Where a stop string cut the text within a
        token, the few characters before the cut get ids of their own.
        """
        ids = self.sequence.token_ids[self.sequence.num_prompt_tokens :]
        if ids and ids[-1] in self._tokenizer.eos_ids:
            ids = ids[:-1]
        shown = "".join(self._shown)
        kept = len(ids)
        while kept and not shown.startswith(text := self._tokenizer.decode(ids[:kept])):
            kept -= 1
        text = self._tokenizer.decode(ids[:kept])
        rest = (
            self._tokenizer.encode_text(shown[len(text) :], after="text")
            if len(text) < len(shown)
            else []
        )
        whole = [*ids[:kept], *rest]
        return tuple(whole) if self._tokenizer.decode(whole) == shown else tuple(ids[:kept])
