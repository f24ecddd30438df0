"""Loads the weights of a Hugging Face folder through transformers. Thread of the load.

Local files only; no code from the folder is run; pickled weights are never opened.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.safetensors_folder import ModelFolder
from inference.model.first_import import quick_first_import
from inference.model.folder_sizes import check_sizes
from inference.model.library_errors import LIBRARY_ERRORS, first_line
from inference.model.memory import is_out_of_memory
from inference.model.progress import LoadReporter
from inference.text.json_file import read_json_object

logger = logging.getLogger(__name__)

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_UNKNOWN_CONTEXT_TOKENS = 4096
_ANOTHER = "Choose another model."


def check_config(folder: ModelFolder) -> dict[str, object]:
    """Look at config.json before anything is imported; give its content, with a "model_type".

    Raises:
        ModelFileError: It is broken, names no model type, or a size that cannot be.
        UnsupportedModelError: Quantised weights, or no decoder-only language model.
    """
    path = folder.path / "config.json"
    config = read_json_object(path)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelFileError(path, "It names no 'model_type'.", hint=_ANOTHER)
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        method = str(quantization.get("quant_method", "unknown"))[:40]
        raise UnsupportedModelError(
            folder.path,
            f"The weights are quantised with {method!r:.60}, which Quire cannot open.",
            hint="Look for the original model, or for a GGUF file of it.",
        )
    if config.get("is_encoder_decoder") is True:
        raise UnsupportedModelError(
            folder.path, f"{model_type[:40]!r} is an encoder-decoder model, not a chat model.",
            hint=_ANOTHER,
        )  # fmt: skip
    check_sizes(folder, config)
    return config


def load_module(
    folder: ModelFolder,
    model_type: str,
    *,
    device: str,
    dtype: torch.dtype,
    reporter: LoadReporter,
    max_memory: Mapping[int | str, int] | None = None,
) -> nn.Module:
    """Load the model of a checked folder onto a device.

    Args:
        folder: Where it is.
        model_type: Of its configuration.
        device: A torch device.
        dtype: Type of the weights.
        reporter: Told how far it is.
        max_memory: If it does not fit: what each device and "cpu" may hold; then accelerate brings
            the weights that are on the host over when they are needed.

    Raises:
        ModelFileError: Weights are missing, or do not fit the configuration.
        UnsupportedModelError: transformers knows no causal model of this kind.
        RuntimeError, OSError: Memory ran out; see `is_out_of_memory`.
    """
    reporter.begin("Preparing the model", until=0.4)
    with quick_first_import():
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # our own progress goes to the window
    try:
        config = AutoConfig.from_pretrained(
            folder.path, local_files_only=True, trust_remote_code=False
        )
        _check_class(folder.path, model_type, config)
        reporter.begin("Loading weights", until=1.0)
        with _counted_weights(reporter):
            module, report = AutoModelForCausalLM.from_pretrained(
                folder.path,
                config=config,
                dtype=dtype,
                device_map=_device_map(device, is_split=max_memory is not None),
                max_memory=None if max_memory is None else dict(max_memory),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except LIBRARY_ERRORS as error:
        if is_out_of_memory(error):
            raise
        raise ModelFileError(
            folder.path, f"transformers cannot load it: {first_line(error)}", hint=_ANOTHER
        ) from error
    _check_report(folder.path, report)
    module.requires_grad_(False)
    model: nn.Module = module.eval()
    return model


def _device_map(device: str, *, is_split: bool) -> str | dict[str, str] | None:
    if is_split:
        return "auto"
    return None if device == "cpu" else {"": device}


def context_tokens(module: nn.Module) -> int:
    """Tell how many tokens the model was made for."""
    config = module.config.get_text_config()  # type: ignore[operator, union-attr]  # a transformers model
    for key in _CONTEXT_KEYS:
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    logger.warning("the model does not say its context length")
    return _UNKNOWN_CONTEXT_TOKENS


def folder_name(path: Path) -> str:
    """Give a name for people; in a Hugging Face cache the folder itself is named by a hash."""
    path = path.resolve()
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.rpartition("--")[2]
    return path.name


@contextmanager
def _counted_weights(reporter: LoadReporter) -> Iterator[None]:
    """Report each weight that transformers places, through its hook for progress bars."""
    from transformers.utils import logging as transformers_logging

    def count(items: Collection[object]) -> Iterator[object]:
        for done, item in enumerate(items, start=1):
            yield item
            reporter.advance(done, len(items))

    def hook(
        factory: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]
    ) -> object:
        if kwargs.get("desc") == "Loading weights" and args and isinstance(args[0], Collection):
            return count(args[0])
        return factory(*args, **kwargs)

    previous = transformers_logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)


def _check_class(path: Path, model_type: str, config: object) -> None:
    """Refuse what has no causal head: transformers would invent random weights for it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    wanted = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    stored = getattr(config, "architectures", None) or []
    if wanted is None or (stored and wanted.lower() not in {str(n).lower() for n in stored}):
        name = str(stored[0]) if stored else model_type
        raise UnsupportedModelError(
            path, f"{name[:60]!r} is not a language model that Quire can chat with.", hint=_ANOTHER
        )


def _check_report(path: Path, report: dict[str, object]) -> None:
    for key, words in (
        ("missing_keys", "is missing"),
        ("mismatched_keys", "has a shape that does not fit the configuration"),
    ):
        names = report.get(key)
        if isinstance(names, list | set | tuple) and names:
            first = sorted(str(name[0] if isinstance(name, tuple) else name) for name in names)[0]
            raise ModelFileError(
                path,
                f"The tensor {first!r:.60} {words} (one of {len(names)}).",
                hint="Download the model again, all its files from one place.",
            )
    unexpected = report.get("unexpected_keys")
    if isinstance(unexpected, list | set | tuple) and unexpected:
        logger.warning("%d tensors of the folder have no use", len(unexpected))
