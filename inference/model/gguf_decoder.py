"""From a GGUF file to our own decoder. Thread of the load."""

from inference.formats.gguf import GgufFile
from inference.model.decoder_weights import DecoderWeights
from inference.model.gguf_loading import check_tensors, rope_factors
from inference.model.gguf_models import ROPE_FACTORS_SHORT, ROPE_FREQS, GgufPlan
from inference.model.spec import UnsupportedSpecError
from inference.model.spec_configs import spec_from_gguf
from inference.model.spec_weights import gguf_sources, tensor_shapes


def describe_gguf(plan: GgufPlan, file: GgufFile) -> DecoderWeights:
    """Describe the file's model, and make sure that each weight is there, of the right shape.

    Raises:
        ModelFileError: A tensor is missing, or of another shape.
        UnsupportedModelError: A tensor has no use.
        UnsupportedSpecError: No `ModelSpec` describes the model: the bridge may run it.
    """
    if plan.family.spec_family is None:
        raise UnsupportedSpecError(f"the architecture {plan.architecture[:40]!r}")
    names = [name for name in (ROPE_FREQS, ROPE_FACTORS_SHORT) if name in file.tensors]
    factors = {name: rope_factors(file, name).tolist() for name in names}
    spec = spec_from_gguf(plan.family.spec_family, plan.config, factors)
    sources = gguf_sources(spec, plan)
    check_tensors(tensor_shapes(sources), plan, file)
    return DecoderWeights(file, spec, sources)
