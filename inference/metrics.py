"""Numbers about requests and the engine: frozen values, safe to send between threads."""

from dataclasses import dataclass, field
from typing import Literal

ReuseStop = Literal[
    "system_prompt",  # the system prompt is another than last time
    "edited",  # an earlier message is another than last time
    "template",  # the chat template writes an earlier reply differently now
    "other_model",  # an earlier reply was written by another model
    "left_out",  # the oldest messages were left out
    "evicted",  # it gave way to others
    "damaged",  # a file could not be verified
    "other_weights",  # it was read with other weights: the model's file is another now
    "other_computing",  # it was computed in another way: other kernels, another backend or type
    "other_precision",  # it was read with another precision of the KV memory
    "no_room",  # there is too little room on disk for all of the chat
    "not_kept",  # it is not kept any more: cleared or removed
]
"""Why something had to be read again that this model has read before in this chat."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """What one request has done so far; final on its last output.

    Attributes:
        prompt_tokens: Length of the prompt.
        reused_tokens: Of these, not computed, because their keys and values were kept.
        reused_ram_tokens, reused_disk_tokens: Of the reused ones, brought back from there; the rest
            was on the device.
        completion_tokens: Tokens sampled, the end-of-turn token included.
        seed: The seed in use, drawn if none was given; None when greedy.
        reuse_stop: Why less was reused than this chat had; None if nothing was lost.
        reuse_stop_message: Where reading began anew: the place of that message among the request's
            messages without the system prompt, from 1; 0 for the system prompt; None if nothing was
            lost or the request has no messages.
        restore_ms: Of the time before the first token, waiting for blocks from RAM and disk.
        queue_ms: From add_request to the first step that ran it.
        prefill_ms: Time of all steps until the first token was sampled, without the queue.
        ttft_ms: From add_request to the first token; None before it.
        decode_ms: From the first token to the last.
        e2e_ms: From add_request to this output.
        drafted_tokens: Guessed ahead and verified.
        accepted_tokens: Of these, what the model itself chose then; they are part of the reply.
        verify_steps: Steps that verified guessed tokens.
        plain_token_ms: What a token would have taken without guessing, measured on this model and machine,
            with prompts of others and pauses as they were; None if nothing was guessed.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    seed: int | None = None
    reuse_stop: ReuseStop | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float | None = None
    decode_ms: float = 0.0
    e2e_ms: float = 0.0
    reused_ram_tokens: int = 0
    reused_disk_tokens: int = 0
    reuse_stop_message: int | None = None
    restore_ms: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verify_steps: int = 0
    plain_token_ms: float | None = None

    @property
    def reused_device_tokens(self) -> int:
        """Reused tokens that were on the device already."""
        return self.reused_tokens - self.reused_ram_tokens - self.reused_disk_tokens

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens computed (not reused) per second of prefill; None before the first token."""
        if self.ttft_ms is None or self.prefill_ms <= 0:
            return None
        return (self.prompt_tokens - self.reused_tokens) * 1000.0 / self.prefill_ms

    @property
    def decode_tps(self) -> float | None:
        """Tokens after the first per second; None with fewer than two tokens."""
        if self.completion_tokens < 2 or self.decode_ms <= 0:
            return None
        return (self.completion_tokens - 1) * 1000.0 / self.decode_ms

    @property
    def guess_speedup(self) -> float | None:
        """How many times as fast as without guessing the reply came; None if nothing was guessed."""
        if self.plain_token_ms is None or self.decode_tps is None:
            return None
        return self.plain_token_ms * self.decode_tps / 1000.0


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """KV blocks by state; free + cached + used = total."""

    total: int = 0
    free: int = 0
    cached: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier of the KV memory.

    Attributes:
        used_bytes: What it holds now.
        budget_bytes: The most that it may hold; 0 if it is off.
    """

    used_bytes: int = 0
    budget_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GuessStats:
    """What guessing ahead did since load, of all requests.

    Attributes:
        is_paying: Whether the last choice was to guess: if not, it would not be faster here.
        by_position: For the first, second ... guessed token: how often it was verified and accepted.
        draft_model: Name of the draft model for people; "" without one.
        draft_bytes: Memory of its weights, keys and values.
    """

    is_paying: bool = False
    by_position: tuple[tuple[int, int], ...] = ()
    draft_model: str = ""
    draft_bytes: int = 0

    @property
    def drafted_tokens(self) -> int:
        """Guessed and verified, up to the first wrong one of each step."""
        return sum(verified for verified, _ in self.by_position)

    @property
    def accepted_tokens(self) -> int:
        """Of these, right."""
        return sum(accepted for _, accepted in self.by_position)


@dataclass(frozen=True, slots=True)
class KvSchemeInfo:
    """One way to store keys and values, for one model.

    Attributes:
        name: "fp32", "fp16", "bf16", "int8" or "int4".
        bytes_per_token: Over all layers, keys and values.
        is_offered: Whether it may be chosen for this model.
        reason: Why it is not offered, one sentence; "" if it is.
    """

    name: str
    bytes_per_token: int
    is_offered: bool = True
    reason: str = ""


COMPATIBILITY_KERNELS = "compatibility kernels"
"""What computes where ours could and are not installed."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded.

    Attributes:
        name: A name for people, from the file's metadata or its file name.
        path: Where it came from, as given.
        architecture: The field's word: "llama", "qwen2", ...
        quantization: Weight type for people: "Q4_1", "BF16"; "mixed" if unclear; "Q8_0 of BF16" if the
            file's weights were rounded at load.
        num_parameters: Count of weights, tied ones once.
        weights_bytes: Memory of the weights as loaded.
        context_tokens: The most that this engine can hold for one request.
        model_context_tokens: What the model was made for.
        has_chat_template: Whether chat is possible; else only plain completion.
        backend: What computes the model, for people, e.g. "Quire's kernels (avx2)"; of the other paths
            what attends and why, and whether decode steps are replayed.
        device: "cpu", "cuda:0", ...
        load_ms: From the call of load to ready.
        fingerprint: Names weights, tokenizer and compute type: the same for the same files in every
            process and at any path, another for another model. Token ids belong to it.
        kv_scheme: How keys and values are stored: a name of `kv_schemes`.
        kv_schemes: All ways to store them, and what each would take.
        compute_path: "fast" is our kernels for the CPU, "torch" our own decoder in torch, "bridge" any
            other model through transformers.
        kernels: What computes: the instruction set of our kernels ("avx2", ...), "torch", or
            `COMPATIBILITY_KERNELS` where ours could be used but are not installed.
        num_threads: CPU threads of a step.
        converted: Which of the file's weight types were converted at load, because there are no kernels
            for them, for people: "IQ4_XS weights kept as Q6_K"; empty if none were.
    """

    name: str
    path: str
    architecture: str
    quantization: str
    num_parameters: int
    weights_bytes: int
    context_tokens: int
    model_context_tokens: int
    has_chat_template: bool
    backend: str
    device: str
    load_ms: float
    fingerprint: str
    kv_scheme: str = "fp16"
    kv_schemes: tuple[KvSchemeInfo, ...] = ()
    compute_path: str = ""
    kernels: str = ""
    num_threads: int = 0
    converted: str = ""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine, cheap enough to take once per step.

    Attributes:
        blocks: KV blocks by state.
        block_size: Slots per block.
        block_bytes: Memory of one block over all layers, keys and values.
        weights_bytes: Memory of the weights.
        kv_bytes: Memory of all KV blocks that have ever been touched, at most the budget.
        num_running, num_waiting: Requests.
        prompt_tokens, reused_tokens, completion_tokens: Totals since load.
        preemptions: Requests put back because blocks ran out.
        evictions: Cached blocks that gave way to others.
        num_loading: Requests that wait for blocks from RAM or disk.
        device, ram, disk: The tiers of the KV memory.
        reused_ram_tokens, reused_disk_tokens: Of the reused tokens, brought back from there.
        disk_written_bytes: Written to the disk tier since load.
        disk_misses: Why files could not be used or written, and how often, by reason.
        disk_problem: Why the disk tier does not work now, and what to do; "" if it does.
        graph_replays: Steps on a GPU that were captured before and only replayed.
        guesses: What guessing ahead did.
    """

    blocks: BlockCounts = field(default_factory=BlockCounts)
    block_size: int = 0
    block_bytes: int = 0
    weights_bytes: int = 0
    kv_bytes: int = 0
    num_running: int = 0
    num_waiting: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    num_loading: int = 0
    device: TierStats = field(default_factory=TierStats)
    ram: TierStats = field(default_factory=TierStats)
    disk: TierStats = field(default_factory=TierStats)
    reused_ram_tokens: int = 0
    reused_disk_tokens: int = 0
    disk_written_bytes: int = 0
    disk_misses: tuple[tuple[str, int], ...] = ()
    disk_problem: str = ""
    graph_replays: int = 0
    guesses: GuessStats = field(default_factory=GuessStats)
