"""The weights of a model for our kernels: as they lie in the file, or rounded. Thread of the load."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from inference.config import WeightTypeName
from inference.errors import NotEnoughMemoryError
from inference.formats.gguf import GgufFile
from inference.formats.weight_file import StoredTensor, WeightFile
from inference.kernels.library import Kernels
from inference.model.decoder_weights import DecoderWeights
from inference.model.memory import free_bytes
from inference.model.packed_weights import PackedWeights, pack_weights, packed_bytes
from inference.model.progress import LoadReporter
from inference.model.quantised_weights import FLOATS, QuantisedFile, changed_words, kernel_types
from inference.model.weight_cache import WeightCache, open_cached, write_cached

logger = logging.getLogger(__name__)

_SHARE_FOR_WEIGHTS = 0.9  # of the free memory
_BY_LOSS = ("", "Q8_0", "Q4_1")  # "": as they lie


@dataclass(frozen=True, slots=True)
class WeightWish:
    """How weights are to be kept.

    Attributes:
        type_name: "auto" leaves floats as they are as long as they fit.
        cache: Where rounded weights are kept; None for nowhere.
        num_threads: How many work at a time.
    """

    type_name: WeightTypeName
    cache: WeightCache | None
    num_threads: int


class NativeWeights(NamedTuple):
    """The weights of a model for our kernels.

    Attributes:
        packed: They.
        rounded_to: Type that floats were rounded to; empty if they were not.
        words: Which types became another because the kernels lack them, for people; empty if none did.
    """

    packed: PackedWeights
    rounded_to: str
    words: str


def load_native_weights(
    weights: DecoderWeights,
    kernels: Kernels,
    wish: WeightWish,
    reporter: LoadReporter,
) -> NativeWeights:
    """Pack a model's weights.

    Args:
        weights: Where they are.
        kernels: Who will compute with them.
        wish: How they are to be kept.
        reporter: Told how far it is.

    Raises:
        ModelFileError: They are to be rounded and kept, and their files changed meanwhile.
        NotEnoughMemoryError: They do not fit.
    """
    type_name = _choose_type(weights, kernels, wish)
    tensors = kernel_types(weights, type_name)
    stored = weights.file.tensors
    changed = {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.type_name != stored[name].type_name
    }
    kinds = Counter((stored[name].type_name, tensor.type_name) for name, tensor in changed.items())
    if not any(old in FLOATS for old, _ in kinds):
        type_name = ""
    for (old, new), count in kinds.items():
        level = logging.INFO if old in FLOATS else logging.WARNING
        logger.log(level, "%d tensors: %s becomes %s", count, old, new)
    with _rounded(weights.file, tensors if changed else {}, type_name, wish, reporter) as file:
        reporter.begin("Loading weights", until=1.0)
        packed = pack_weights(
            replace(weights, file=file), kernels, num_threads=wish.num_threads, reporter=reporter
        )
    return NativeWeights(packed, type_name, changed_words(kinds))


def _choose_type(weights: DecoderWeights, kernels: Kernels, wish: WeightWish) -> str:
    """The type of the least loss that fits, or that is wished for; empty for none."""
    candidates = _BY_LOSS if wish.type_name == "auto" else (wish.type_name,)
    free = free_bytes("cpu")
    needed = 0
    for type_name in candidates:
        needed = packed_bytes(weights, kernel_types(weights, type_name), kernels)
        if needed <= _SHARE_FOR_WEIGHTS * free:
            if type_name != candidates[0]:
                logger.warning("too little memory is free: weights are rounded to %s", type_name)
            return type_name
    raise NotEnoughMemoryError(needed, free)


@contextmanager
def _rounded(
    file: WeightFile,
    tensors: Mapping[str, StoredTensor],
    type_name: str,
    wish: WeightWish,
    reporter: LoadReporter,
) -> Iterator[WeightFile]:
    """A file in other types; from where it is kept, if it was rounded to one of them and may be."""
    if not tensors:
        yield file
        return
    cache = wish.cache if type_name else None
    path = None if cache is None else _kept_path(cache, type_name, reporter)
    if path is not None:
        reporter.begin("Checking rounded weights", until=0.25)
        cached = open_cached(path, tensors, num_threads=wish.num_threads)
        if cached is not None:
            with cached:
                yield cached
            return
    with QuantisedFile(file, tensors, num_threads=wish.num_threads, reporter=reporter) as rounded:
        if cache is not None and path is not None:
            reporter.begin("Rounding weights, once", until=0.8)
            if write_cached(path, rounded, cache.files, reporter):
                with GgufFile.read(path) as cached:
                    yield cached
                return
        yield rounded


def _kept_path(cache: WeightCache, type_name: str, reporter: LoadReporter) -> Path:
    reporter.begin("Checking the file", until=0.2)
    return cache.path(type_name, lambda share: reporter.advance(share, 1.0))
