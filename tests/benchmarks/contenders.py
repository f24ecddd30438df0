"""Engines that `compare` holds side by side: ours and its peers, on the same weights and threads.

Each contender takes ready token ids, chooses greedily, starts from an empty cache, and goes on behind the end of
a turn: what follows costs the same.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel

from inference.config import DtypeName, EngineConfig, SamplingParams
from inference.engine import Engine
from inference.engine_loading import load_parts
from inference.model.loader import load_model
from tests.inference.loaded_models import endless


class Contender(Protocol):
    """One engine under measurement."""

    name: str

    def run(self, prompt_ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        """Choose `num_tokens` tokens greedily after a prompt that this engine has never seen.

        Returns:
            The tokens, and for each the seconds from the start of the call until it was chosen.
        """

    def close(self) -> None:
        """Give the memory back."""


class Quire:
    """Our engine."""

    name = "quire"

    def __init__(
        self, path: Path, *, threads: int, dtype: DtypeName, context_tokens: int | None
    ) -> None:
        # Nothing is guessed ahead, by any contender: greedy replies to random prompts repeat themselves.
        config = EngineConfig(
            device="cpu",
            dtype=dtype,
            num_threads=threads,
            context_tokens=context_tokens,
            guess="off",
        )
        parts = load_parts(path, config, None)
        parts.tokenizer = endless(parts.tokenizer)
        self._engine = Engine(parts)
        self.info = self._engine.info

    def run(self, prompt_ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        token_ids: list[int] = []
        times: list[float] = []
        began = time.perf_counter()
        for output in self._engine.generate(
            conversation_id="compare", prompt_token_ids=prompt_ids, params=params
        ):
            token_ids += output.token_ids
            times += [time.perf_counter() - began] * len(output.token_ids)
            if output.metrics.reused_tokens:
                raise AssertionError("the prompt was not new, so this is no cold measurement")
        return token_ids, times

    def close(self) -> None:
        self._engine.close()


class _TokenTimes:
    """A streamer of `generate()` that notes when each token was chosen."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.times: list[float] = []
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._is_prompt:
            self.times.append(time.perf_counter() - self.began)
        self._is_prompt = False

    def end(self) -> None:
        pass


class Transformers:
    """`generate()` of transformers on a module of the same weights that we have not touched."""

    name = "transformers"

    def __init__(self, path: Path, *, threads: int, dtype: DtypeName) -> None:
        torch.set_num_threads(threads)
        module: PreTrainedModel = load_model(path, device="cpu", dtype=dtype).module
        module.set_attn_implementation("sdpa")
        module.generation_config.eos_token_id = None
        module.generation_config.pad_token_id = 0
        self._module = module

    def run(self, prompt_ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        streamer = _TokenTimes()
        input_ids = torch.tensor([list(prompt_ids)])
        with torch.inference_mode():
            output = self._module.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                do_sample=False,
                max_new_tokens=num_tokens,
                use_cache=True,
                streamer=streamer,
            )
        return output[0, len(prompt_ids) :].tolist(), streamer.times

    def close(self) -> None:
        del self._module


class LlamaCpp:
    """llama.cpp through llama-cpp-python, on the file's own quantised weights."""

    def __init__(
        self, path: Path, *, threads: int, context_tokens: int, is_flash: bool = False
    ) -> None:
        import llama_cpp

        self.name = "llama.cpp flash" if is_flash else "llama.cpp"

        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=context_tokens,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0,
            flash_attn=is_flash,
            verbose=False,
        )

    def run(self, prompt_ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        token_ids: list[int] = []
        times: list[float] = []
        began = time.perf_counter()
        self._llama.reset()
        self._llama.eval(list(prompt_ids))
        while True:
            token_ids.append(self._llama.sample(temp=0.0))
            times.append(time.perf_counter() - began)
            if len(token_ids) == num_tokens:
                return token_ids, times
            self._llama.eval(token_ids[-1:])

    def close(self) -> None:
        self._llama.close()
