"""Runs a transformers model over our KV blocks, without changing the model. Engine thread only.

transformers lets a model's attention be chosen by name and hands each layer's new keys and values
to a cache object. So a `Cache` of ours stores them in the blocks, and an attention function of ours,
registered under a name, reads the blocks:

    layer: q, k, v  ->  cache.update(k, v, layer, kwargs)      stores; leaves itself in kwargs, or beside
                    ->  attention(q, k, v, mask=None, **kwargs)    asks that cache to attend

No mask function is registered under the name, and then transformers builds no masks at all. Every
token's position is given, so that many sequences can lie in one row.

What cannot work this way is refused when the model is opened, with the reason: a probe of one token
goes through all layers and sees what each of them asks for.
"""

import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, get_layer_types_and_kwargs

from inference.attention.base import AttentionBackend, LayerCall
from inference.errors import UnsupportedModelError
from inference.kv_cache.layer_memory import KeyValues
from inference.kv_cache.schemes import LayerGeometry
from inference.kv_cache.tensors import KvTensors
from inference.model.base import PathName
from inference.model.runner import ModelRunner

ATTENTION_NAME = "quire"
_SHARING = "dummy"  # transformers' word for a layer that has no keys of its own
_KNOWN_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
# These rotary variants change every angle once a sequence is longer than the original context,
# so keys stored before would be wrong after: the context ends there.
_CHANGING_ROTARY = frozenset({"dynamic", "longrope"})


class TransformersBridge:
    """A transformers model, ready to run over blocks.

    Attributes:
        geometry: What each layer stores per token.
        dtype: Type of keys and queries, as the model computes them.
        vocab_size: V, length of the logits.
        stable_context_tokens: Beyond this the rotary angles would change; None if they never do.
        has_attention_softcap: Whether its layers cap attention scores.
    """

    path_name: PathName = "bridge"
    has_independent_rows = False
    kernels = "transformers"

    def __init__(self, module: nn.Module, path: Path, *, has_fast_rows: bool = False) -> None:
        """Switch the model's attention to ours and find out what its layers need.

        Args:
            module: A transformers causal model in eval mode. Its attention is replaced.
            path: Where it came from, for errors.
            has_fast_rows: See `ModelRunner`.

        Raises:
            UnsupportedModelError: It asks for something that blocks cannot give.
        """
        self._module: PreTrainedModel = module
        self._path = path
        self._has_fast_rows = has_fast_rows
        AttentionInterface.register(ATTENTION_NAME, _attend)
        self._check_config()
        self.select_attention(ATTENTION_NAME)
        probe, self.vocab_size = self._probe()
        self.geometry = tuple(probe.geometry[layer] for layer in range(len(probe.geometry)))
        self.dtype = probe.dtype
        self.has_attention_softcap = probe.has_softcap
        self.stable_context_tokens = _stable_context_tokens(self._module)

    @property
    def device(self) -> torch.device:
        """Where the model computes; weights that accelerate keeps on the host are on none meanwhile."""
        parameters: Iterator[Tensor] = self._module.parameters()
        return next(each.device for each in parameters if each.device.type != "meta")

    @property
    def config_text(self) -> str:
        """The model's whole configuration, for telling models apart."""
        text: str = self._module.config.to_json_string(use_diff=False)
        return text

    def select_attention(self, name: str) -> None:
        """Choose the attention of the model by transformers' name for it: ours, or its own."""
        self._module.set_attn_implementation(name)
        if self._module.config._attn_implementation != name:
            raise UnsupportedModelError(
                self._path, "Its attention is built in and cannot be replaced."
            )

    def make_cache(self, kv: KvTensors, attention: AttentionBackend) -> "BlockCache":
        """See `TorchModel`."""
        return BlockCache(kv, attention)

    def make_runner(self, kv: KvTensors, attention: AttentionBackend) -> ModelRunner:
        """See `LanguageModel`."""
        return ModelRunner(
            self, kv, attention, device=self.device, has_fast_rows=self._has_fast_rows
        )

    def forward(self, token_ids: Tensor, positions: Tensor, keep: Tensor, cache: Cache) -> Tensor:
        """See `TorchModel`."""
        output = self._module(
            input_ids=token_ids,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits[0]
        return logits.float()

    def forward_alone(self, token_ids: Tensor) -> Tensor:
        """Logits of the model's own code without any cache: (1, T) to (T, V), float32."""
        logits: Tensor = self._module(input_ids=token_ids, use_cache=False).logits[0]
        return logits.float()

    def _check_config(self) -> None:
        config = _text_config(self._module)
        layer_types, _ = get_layer_types_and_kwargs(config)
        if _SHARING in layer_types:
            is_known = config.model_type.startswith("gemma4")  # to our own decoder, as GGUF
            raise UnsupportedModelError(
                self._path,
                "Some of its layers attend to keys and values of others.",
                hint="Choose a GGUF file of this model." if is_known else "Choose another model.",
            )
        unknown = sorted(set(layer_types) - _KNOWN_LAYER_TYPES)
        if unknown:
            raise UnsupportedModelError(
                self._path,
                f"It has layers of a kind that cannot be kept in blocks: {', '.join(unknown)}.",
            )

    def _probe(self) -> tuple["_ProbeCache", int]:
        """One token through all layers: what they asked for, checked to be all of them, and V."""
        probe = _ProbeCache()
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        try:
            with torch.inference_mode():
                logits = self.forward(zero, zero, zero[0], probe)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UnsupportedModelError(
                self._path, "Its code cannot run with another cache and attention."
            ) from error
        layer_types, layer_kwargs = get_layer_types_and_kwargs(_text_config(self._module))
        probe.check(self._path, windows=[kwargs.get("sliding_window") for kwargs in layer_kwargs])
        assert len(layer_types) == len(probe.geometry), "the check compares both"
        return probe, logits.shape[-1]


class BlockCache(Cache):  # type: ignore[misc]  # transformers is untyped for us, see pyproject
    """Stands between the model's layers and the blocks, for one engine.

    Attributes:
        slots: Where this step's tokens go, (T,), int64; set before each forward.
    """

    def __init__(self, kv: KvTensors, attention: AttentionBackend) -> None:
        super().__init__(layers=[])
        self._kv = kv
        self._attention = attention
        self.slots = torch.empty(0, dtype=torch.int64)

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        kwargs: MutableMapping[str, object] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values, (1, KH, T, D).

        Returns:
            Them, as a later step would read them. So it makes no difference in which chunk a token
            was computed.
        """
        _leave_trail(self, layer_idx, kwargs)
        return self._kv.write(layer_idx, self.slots, KeyValues(key_states, value_states))

    def attend(self, layer: int, query: Tensor, new: KeyValues, call: LayerCall) -> Tensor:
        """Attend in one layer, (1, H, T, D) to (1, T, H, D)."""
        past = self._kv.layers[layer]
        if past.rotation is None:
            return self._attention.attend(query, new, past, call)
        turn = past.rotation.to_query.to(query.dtype)
        return self._attention.attend(query @ turn, new, past, call) @ turn


class _ProbeCache(Cache):  # type: ignore[misc]  # transformers is untyped for us, see pyproject
    """Stores nothing; notes what each layer asks for while one token goes through."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.geometry: dict[int, LayerGeometry] = {}
        self.dtype = torch.float32
        self._calls: dict[int, LayerCall] = {}
        self._shapes: dict[int, tuple[torch.Size, torch.Size]] = {}

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        kwargs: MutableMapping[str, object] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes and hand both through."""
        _leave_trail(self, layer_idx, kwargs)
        self.dtype = key_states.dtype
        self._shapes[layer_idx] = (key_states.shape, value_states.shape)
        self.geometry[layer_idx] = LayerGeometry(key_states.shape[1], key_states.shape[3])
        return key_states, value_states

    def attend(self, layer: int, query: Tensor, new: KeyValues, call: LayerCall) -> Tensor:
        """A single token attends to itself alone, so the result is its value."""
        self._calls[layer] = call
        group = query.shape[1] // new.values.shape[1]
        return new.values.repeat_interleave(group, dim=1).transpose(1, 2)

    @property
    def has_softcap(self) -> bool:
        """Whether a layer caps its scores."""
        return any(call.softcap is not None for call in self._calls.values())

    def check(self, path: Path, *, windows: list[int | None]) -> None:
        """Compare what came by with what the configuration says.

        Raises:
            UnsupportedModelError: A layer kept its keys or its attention to itself, or differs.
        """
        everyone = set(range(len(windows)))
        if set(self.geometry) != everyone or set(self._calls) != everyone:
            raise UnsupportedModelError(
                path, "Some of its layers do not keep keys and values of their own."
            )
        for layer, (keys, values) in self._shapes.items():
            if keys != values:
                raise UnsupportedModelError(
                    path, f"Layer {layer} has keys of shape {tuple(keys)}, values {tuple(values)}."
                )
            if self._calls[layer].window != windows[layer]:
                raise UnsupportedModelError(
                    path,
                    f"Layer {layer} has the window {windows[layer]} in the configuration and "
                    f"{self._calls[layer].window} in the code.",
                )


class _AttentionError(ValueError):
    """A layer asks for an attention that we do not have."""


class _Trail(threading.local):
    """Where keys went that a layer stored last without handing on its attention's arguments."""

    last: "tuple[BlockCache | _ProbeCache, int] | None" = None

    def pop(self) -> "tuple[BlockCache | _ProbeCache, int]":
        last, self.last = self.last, None
        if last is None:
            raise _AttentionError("a layer attends without having stored keys")
        return last


_trail = _Trail()


def _leave_trail(
    cache: "BlockCache | _ProbeCache", layer_idx: int, kwargs: MutableMapping[str, object] | None
) -> None:
    """Tell the attention function who has the keys and of what layer.

    It gets the same kwargs, or comes next in the same thread.
    """
    if kwargs is None:
        _trail.last = cache, layer_idx
        return
    kwargs["quire_cache"] = cache
    kwargs["quire_layer"] = layer_idx


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    *,
    quire_cache: "BlockCache | _ProbeCache | None" = None,
    quire_layer: int = 0,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: (1, H, T, D) to (1, T, H, D), and no weights."""
    if attention_mask is not None or kwargs.get("s_aux") is not None:
        raise _AttentionError("masks and attention sinks are not supported")
    if kwargs.get("position_bias") is not None or not getattr(module, "is_causal", True):
        raise _AttentionError("position biases and attention to later tokens are not supported")
    if quire_cache is None:
        quire_cache, quire_layer = _trail.pop()
    call = LayerCall(
        query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap
    )
    out = quire_cache.attend(quire_layer, query, KeyValues(key, value), call)
    return out.contiguous(), None  # some models take it apart by `view`


def _text_config(module: PreTrainedModel) -> PretrainedConfig:
    """The configuration of the language model, of which a model with images is a part."""
    config: PretrainedConfig = module.config.get_text_config()
    return config


def _stable_context_tokens(module: PreTrainedModel) -> int | None:
    """How long a sequence may get before its rotary angles change; None if they never do."""
    config = _text_config(module)
    parameters = getattr(config, "rope_parameters", None) or {}
    variants = [parameters] if "rope_type" in parameters else list(parameters.values())
    limits = [
        variant.get("original_max_position_embeddings") or config.max_position_embeddings
        for variant in variants
        if isinstance(variant, dict) and variant.get("rope_type") in _CHANGING_ROTARY
    ]
    return min(limits, default=None)
