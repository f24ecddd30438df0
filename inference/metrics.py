"""Numbers about requests and the engine: frozen values, safe to send between threads."""

from dataclasses import dataclass, field
from typing import Literal

ReuseStop = Literal[
    "nothing_cached",  # the very first block is not known, or the prompt fills none
    "different_text",  # the prompt differs from everything cached after the reused part
    "evicted",  # the blocks were there once and gave way to others
    "all_reused",  # every full block; at least the last token must always be computed
]


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """What one request has done so far; final on its last output.

    Attributes:
        prompt_tokens: Length of the prompt.
        reused_tokens: Of these, taken from cached blocks.
        completion_tokens: Tokens sampled, the end-of-turn token included.
        seed: The seed in use, drawn if none was given; None when greedy.
        queue_ms: From add_request to the first step that ran it.
        prefill_ms: Time of all steps until the first token was sampled, without the queue.
        ttft_ms: From add_request to the first token; None before it.
        decode_ms: From the first token to the last.
        e2e_ms: From add_request to this output.
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


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """KV blocks by state; free + cached + used = total."""

    total: int = 0
    free: int = 0
    cached: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded.

    Attributes:
        name: A name for people, from the file's metadata or its file name.
        path: Where it came from, as given.
        architecture: The field's word: "llama", "qwen2", ...
        quantization: Weight type of the file for people: "Q4_1", "BF16"; "mixed" if unclear.
        num_parameters: Count of weights, tied ones once.
        weights_bytes: Memory of the weights as loaded.
        context_tokens: The most that this engine can hold for one request.
        model_context_tokens: What the model was made for.
        has_chat_template: Whether chat is possible; else only plain completion.
        backend: Attention backend in use and why, e.g. "blocks (CPU)".
        device: "cpu", "cuda:0", ...
        load_ms: From the call of load to ready.
        fingerprint: Names weights, tokenizer and compute type: the same for the same files in every
            process and at any path, another for another model. Token ids belong to it.
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
