"""Our decoder over twins whose weights are packed or on the host, by the CPU's operators."""

from pathlib import Path

import torch
from torch import Tensor

from inference.formats.gguf import GgufFile
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import DecoderWeights, read_weights
from inference.model.gguf_decoder import describe_gguf
from inference.model.gguf_models import plan_model
from inference.model.gpu_weights import load_weights
from inference.model.weight_plan import WeightPlan
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import remake, wide_config
from tests.inference.loaded_models import logits_of
from tests.inference.tiny_models import make_tokens

CPU = torch.device("cpu")
NONE: frozenset[int] = frozenset()
NUM_LAYERS = 4
TOKENS = make_tokens(30)


def make_twin(folder: Path, quantization: str, **changes: object) -> Path:
    values = {"num_hidden_layers": NUM_LAYERS, "vocab_size": 272, **changes}
    module = remake(wide_config(**values))
    return write_twin(module, folder / "twin.gguf", quantization=quantization)


def weights_in(file: GgufFile) -> DecoderWeights:
    return describe_gguf(plan_model(file), file)


def decoder_of(plan: WeightPlan, on_host: frozenset[int] = NONE) -> TorchDecoder:
    placed = load_weights(plan, CPU, on_host, num_threads=2)
    return TorchDecoder(
        plan.weights.spec, placed.vectors, linears=placed.linears, stream=placed.stream
    )


def plain_logits(weights: DecoderWeights, dtype: torch.dtype) -> Tensor:
    decoder = TorchDecoder(weights.spec, read_weights(weights, dtype=dtype))
    return logits_of(decoder, TOKENS, chunk_tokens=7)
