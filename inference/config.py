"""What a caller may set: the engine's configuration and one request's sampling. Pure Python."""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inference.errors import InvalidRequestError

DeviceName = Literal["auto", "cpu", "cuda", "mps", "xpu"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
KvSchemeName = Literal["auto", "fp32", "fp16", "bf16", "int8", "int4"]
BackendName = Literal["auto", "fast", "torch", "bridge"]
WeightTypeName = Literal["auto", "float", "Q8_0", "Q4_1"]
GuessName = Literal["auto", "off", "ngram", "draft"]
AttentionName = Literal["auto", "varlen", "flash", "blocks", "reference"]

BACKENDS: tuple[BackendName, ...] = ("auto", "fast", "torch", "bridge")
WEIGHT_TYPES: tuple[WeightTypeName, ...] = ("auto", "float", "Q8_0", "Q4_1")
ATTENTIONS: tuple[AttentionName, ...] = ("auto", "varlen", "flash", "blocks", "reference")
GUESSES: tuple[GuessName, ...] = ("auto", "off", "ngram", "draft")
KV_SCHEMES: tuple[KvSchemeName, ...] = ("auto", "fp32", "fp16", "bf16", "int8", "int4")
MAX_DRAFT_TOKENS = 16
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to load and run one model.

    Attributes:
        device: Where to compute; "auto" takes CUDA, then MPS, then XPU, then the CPU.
        dtype: Type of weights and activations; "auto" is float32 on CPU (bfloat16 if float32 does
            not fit) and bfloat16 on GPUs.
        kv_scheme: How keys and values are stored; "auto" is bf16 where the model computes in bfloat16
            and fp16 elsewhere. int4 is refused for a model that it would make worse.
        context_tokens: Most tokens of prompt and reply together, at least 2; None takes the
            model's own limit, bounded by `kv_cache_bytes`.
        block_size: Slots per KV block, a power of two; None takes the backend's own.
        kv_cache_bytes: Budget of the KV blocks on the device, >= 1 MiB; None chooses from free memory.
        ram_cache_bytes: Budget of blocks put aside in RAM; 0 is off, None chooses from free memory.
        disk_cache_bytes: Budget of blocks on disk; 0 is off, None chooses from what is free there.
        cache_dir: Folder of blocks and rounded weights on disk; None keeps nothing on disk.
        prefill_chunk_tokens: Most tokens of one step, >= 1: *stop* waits for its end. None takes 256, and
            on CUDA 512, or 2,048 where a kernel reads the blocks. Our kernels for the CPU take fewer where
            so many would take long.
        num_threads: CPU threads, >= 1; None takes OMP_NUM_THREADS, or else the physical cores. Never more
            compute than the computer runs at a time.
        backend: What computes the model: "fast" is our kernels for the CPU, "torch" our own decoder in
            torch, "bridge" transformers; "auto" takes the first of them that can. Another than "auto"
            is an order: what cannot be computed so is refused.
        weights: How weights are kept in memory. "auto": quantised ones as the file has them, where our
            kernels for the CPU or a CUDA card with bfloat16 compute (there in 4 or 8 bits), floats as
            they are, unless only rounded ones fit a CPU's memory. "Q8_0", "Q4_1": floats are rounded
            to 8 or 5 bits each too: faster, smaller, a bit worse; for the CPU they are kept in
            `cache_dir`. "float": all of `dtype`.
        attention_backend: Of "torch" and "bridge": "varlen" is torch's kernel for CUDA, "flash" the
            package flash-attn, "blocks" runs everywhere, "reference" defines the truth; "auto" takes
            the first of them that can. Another than "auto" is an order: what cannot be is refused.
        guess: Whether tokens are guessed ahead and verified together, which changes no reply: "auto" does so
            by all proposers there are, where it pays; "ngram" only by what the chat has said before, "draft"
            only by a draft model.
        draft_model: A second, smaller model of the same vocabulary that guesses, as `Engine.load` takes it.
        draft_tokens: Guess so many tokens each time, 1 to 16, whether it pays or not; None chooses.
        cuda_graphs: Whether decode steps on CUDA are captured once and replayed, where that is possible.
    """

    device: DeviceName = "auto"
    dtype: DtypeName = "auto"
    kv_scheme: KvSchemeName = "auto"
    context_tokens: int | None = None
    block_size: int | None = None
    kv_cache_bytes: int | None = None
    ram_cache_bytes: int | None = None
    disk_cache_bytes: int | None = None
    cache_dir: str | None = None
    prefill_chunk_tokens: int | None = None
    num_threads: int | None = None
    backend: BackendName = "auto"
    weights: WeightTypeName = "auto"
    attention_backend: AttentionName = "auto"
    cuda_graphs: bool = True
    guess: GuessName = "auto"
    draft_model: str | None = None
    draft_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_choice("device", self.device, ("auto", "cpu", "cuda", "mps", "xpu"))
        _check_choice("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        _check_choice("kv_scheme", self.kv_scheme, KV_SCHEMES)
        _check_choice("backend", self.backend, BACKENDS)
        _check_choice("weights", self.weights, WEIGHT_TYPES)
        _check_choice("attention_backend", self.attention_backend, ATTENTIONS)
        _check_bool("cuda_graphs", self.cuda_graphs)
        _check_choice("guess", self.guess, GUESSES)
        _check_path("draft_model", self.draft_model, "a model")
        if self.guess == "draft" and self.draft_model is None:
            raise InvalidRequestError("draft_model", 'must be given with guess="draft".')
        _check_optional_int("draft_tokens", self.draft_tokens, low=1, high=MAX_DRAFT_TOKENS)
        _check_optional_int("context_tokens", self.context_tokens, low=2)
        _check_optional_int("block_size", self.block_size, low=1, high=4096)
        if self.block_size is not None and self.block_size & (self.block_size - 1):
            raise InvalidRequestError(
                "block_size", f"must be a power of two, not {self.block_size}."
            )
        _check_optional_int("kv_cache_bytes", self.kv_cache_bytes, low=2**20)
        _check_optional_int("ram_cache_bytes", self.ram_cache_bytes, low=0)
        _check_optional_int("disk_cache_bytes", self.disk_cache_bytes, low=0)
        _check_path("cache_dir", self.cache_dir, "a folder")
        _check_optional_int("prefill_chunk_tokens", self.prefill_chunk_tokens, low=1, high=65_536)
        _check_optional_int("num_threads", self.num_threads, low=1, high=1024)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose each token of one reply. Checked on construction.

    Attributes:
        temperature: 0 is argmax; 0 to 100.
        top_k: Keep the k likeliest; 0 switches it off.
        top_p: Keep the smallest set with this probability; 1 switches it off, 0 keeps one token.
        min_p: Keep tokens with at least this share of the best one's probability; 0 is off.
        repetition_penalty: > 0; divides positive and multiplies negative logits of tokens seen in
            prompt or reply; 1 is off (Keskar et al. 2019, CTRL).
        presence_penalty: -2 to 2; subtracted once from each token seen in the reply; 0 is off.
        frequency_penalty: -2 to 2; subtracted per occurrence in the reply; 0 is off.
        seed: 0 to 2^63 - 1; None draws a new one, which is recorded in the request's metrics.
        max_tokens: Most tokens of the reply, >= 1; None lets it run to the end of the context.
        stop: The reply ends before the first of these strings, which is never shown. A list is
            accepted and kept as a tuple.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_float("temperature", self.temperature, low=0.0, high=100.0)
        _check_int("top_k", self.top_k, low=0, high=2**31 - 1)
        _check_float("top_p", self.top_p, low=0.0, high=1.0)
        _check_float("min_p", self.min_p, low=0.0, high=1.0)
        _check_float("repetition_penalty", self.repetition_penalty, low=0.01, high=100.0)
        _check_float("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        _check_float("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        _check_optional_int("seed", self.seed, low=0, high=MAX_SEED)
        _check_optional_int("max_tokens", self.max_tokens, low=1)
        object.__setattr__(self, "stop", _checked_stop(self.stop))

    @property
    def is_greedy(self) -> bool:
        """Whether every token is the argmax, so that no random number is drawn."""
        return self.temperature == 0.0


def _checked_stop(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise InvalidRequestError("stop", f"must be a list of strings, not {type(value).__name__}.")
    if len(value) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            "stop", f"may hold at most {MAX_STOP_STRINGS} strings, not {len(value)}."
        )
    for item in value:
        if not isinstance(item, str) or not 1 <= len(item) <= MAX_STOP_STRING_CHARS:
            raise InvalidRequestError(
                "stop", f"each string must have 1 to {MAX_STOP_STRING_CHARS} characters."
            )
    return tuple(value)


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidRequestError(
            field, f"must be one of {', '.join(choices)}, not {_shown(value)}."
        )


def _check_bool(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError(field, f"must be True or False, not {_shown(value)}.")


def _check_path(field: str, value: object, of_what: str) -> None:
    if value is not None and not (isinstance(value, str) and value):
        raise InvalidRequestError(field, f"must be the path of {of_what}, not {_shown(value)}.")


def _check_float(field: str, value: object, *, low: float, high: float) -> None:
    allowed = f"must be a number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequestError(field, f"{allowed}, not {type(value).__name__} {_shown(value)}.")
    if not low <= value <= high:  # false for NaN too
        raise InvalidRequestError(field, f"{allowed}, not {_shown(value)}.")


def _check_int(field: str, value: object, *, low: int, high: int = 2**63 - 1) -> None:
    allowed = f"must be a whole number from {low:,} to {high:,}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(field, f"{allowed}, not {type(value).__name__} {_shown(value)}.")
    if not low <= value <= high:
        raise InvalidRequestError(field, f"{allowed}, not {_shown(value)}.")


def _check_optional_int(field: str, value: object, *, low: int, high: int = 2**63 - 1) -> None:
    if value is not None:
        _check_int(field, value, low=low, high=high)


def _shown(value: object) -> str:
    # Short whatever it is: a number of a million digits, say, which repr() even refuses to write.
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length():,} bits"
    return reprlib.repr(value)
