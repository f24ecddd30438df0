"""An engine around a tiny seeded model, with a tokenizer of bytes."""

import gc
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import tokenizers
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedModel

from inference import engine_loading
from inference.config import EngineConfig
from inference.engine import Engine
from inference.engine_loading import EngineParts, load_parts
from inference.kv_cache.manager import KvCacheManager
from inference.live_requests import Clock
from inference.model.base import Runner
from inference.model.loader import LoadedModel
from inference.request import RequestId, StepOutput
from inference.speculation.calibration import measure_steps
from inference.text.chat_template import ChatTemplate
from inference.text.tokenizer import Markup, SpacePrefix, Tokenizer, TurnTokens
from inference.text.vocabulary import BYTE_ALPHABET, Vocabulary
from tests.inference.tiny_models import VOCAB_SIZE, make_module

# Closing an engine looks through all objects for cycles: 0.4 s for those of the libraries alone, which
# stay anyway.
gc.collect()
gc.freeze()

CONTROL = ("<pad>", "<s>", "</s>", "<turn>")
BOS_ID, EOS_ID, TURN_ID = 1, 2, 3
_measured: dict[tuple[object, ...], dict[int, float]] = {}
TEMPLATE = (
    "<s>{% for m in messages %}<turn>{{ m.role }}:{{ m.content }}{% endfor %}<turn>assistant:"
)


def make_tokenizer(*, eos_ids: Sequence[int] = (EOS_ID,)) -> Tokenizer:
    """One id per byte: byte b is 4 + its place in the byte alphabet."""
    pieces = [*CONTROL, *BYTE_ALPHABET]
    assert len(pieces) == VOCAB_SIZE
    plain = {piece: token_id for token_id, piece in enumerate(pieces) if piece not in CONTROL}
    core = tokenizers.Tokenizer(models.BPE(vocab=plain, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    control = {name: token_id for token_id, name in enumerate(CONTROL)}
    return Tokenizer(
        core,
        Vocabulary(pieces, is_byte_level=True, literal_ids=control.values()),
        Markup(control),
        turns=TurnTokens(BOS_ID, EOS_ID, frozenset(eos_ids), add_bos=True),
        prefix=SpacePrefix(),
    )


def make_loaded(
    family: str = "llama",
    *,
    eos_ids: Sequence[int] = (),
    template: str | None = TEMPLATE,
    seed: int = 0,
    context_tokens: int = 512,
) -> LoadedModel:
    """A loaded tiny model; without `eos_ids` no reply ends by itself."""
    tokenizer = make_tokenizer(eos_ids=eos_ids)
    module: PreTrainedModel = make_module(family, seed=seed)
    return LoadedModel(
        model=module,
        tokenizer=tokenizer,
        chat_template=None if template is None else ChatTemplate(template, "<s>", "</s>"),
        name="Tiny",
        architecture=family,
        quantization="F32",
        num_parameters=module.num_parameters(),
        weights_bytes=4 * module.num_parameters(),
        model_context_tokens=context_tokens,
        fingerprint=f"{family} {seed}".encode(),
    )


def make_parts(loaded: LoadedModel | None = None, **config: object) -> EngineParts:
    """Parts of an engine; small blocks unless told otherwise."""
    loaded = loaded or make_loaded()
    values: dict[str, object] = {"block_size": 8, "num_threads": 1, "device": "cpu", **config}
    with patch.object(engine_loading, "measure_steps", _measured_once):
        return load_parts(
            Path("tiny"),
            EngineConfig(**values),  # type: ignore[arg-type]  # fields of tests, checked by the class
            None,
            load=lambda path, **options: loaded,
        )


def _measured_once(runner: Runner, kv: KvCacheManager, *, dearest: float) -> dict[int, float]:
    """Measures the first engine of a kind; its 28 steps take longer than all else of opening one."""
    kind = (type(runner), *runner.kv.geometry, runner.kv.scheme, kv.counts())
    if kind not in _measured:
        _measured[kind] = measure_steps(runner, kv, dearest=dearest)
    return dict(_measured[kind])


def make_engine(
    loaded: LoadedModel | None = None, *, clock: Clock | None = None, **config: object
) -> Engine:
    """An engine over a tiny model."""
    parts = make_parts(loaded, **config)
    return Engine(parts) if clock is None else Engine(parts, clock=clock)


def run_until_idle(engine: Engine) -> dict[RequestId, list[StepOutput]]:
    """Step until nothing is left; outputs by request."""
    outputs: dict[RequestId, list[StepOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def sampled_ids(outputs: Sequence[StepOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


def shown_text(outputs: Sequence[StepOutput]) -> str:
    return "".join(output.text for output in outputs)
