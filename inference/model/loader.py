"""Opens a model: a GGUF file, or a Hugging Face folder of safetensors. Thread of the caller.

Nothing is fetched, no code of the model is run, and pickled weights are refused. What the files
say is checked before weights are read, so that a bad file fails in milliseconds.
"""

import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from inference.config import BackendName, DtypeName, WeightTypeName
from inference.errors import ChatTemplateError, CpuOnlyError, UnsupportedModelError
from inference.formats.gguf import GgufFile
from inference.formats.safetensors_folder import check_folder
from inference.formats.safetensors_weights import FolderWeights
from inference.formats.whole_digest import WeightFiles
from inference.model import folder_loading, gguf_loading
from inference.model.base import LanguageModel
from inference.model.folder_decoder import describe_folder
from inference.model.gguf_decoder import describe_gguf
from inference.model.gguf_models import GgufPlan, plan_model
from inference.model.kv_wish import KvWish
from inference.model.model_paths import MadeModel, ModelSource, Wish, make_model
from inference.model.progress import LoadReporter, ProgressCallback
from inference.text.chat_template import ChatTemplate
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_folder import chat_template_from_folder, tokenizer_from_folder
from inference.text.tokenizer_gguf import tokenizer_from_metadata

logger = logging.getLogger(__name__)

_WEIGHT_TYPE_SUFFIX = re.compile(r"(?<=.)[-._](I?Q\d\w*|B?F16|F32|MXFP4)$", re.IGNORECASE)
_GENERIC_NAMES = ("model", "ggml-model", "ggml_model", "unsloth")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, ready to run.

    Attributes:
        model: On its device: a causal model of transformers in eval mode, for the bridge, or one that
            is ready to run.
        tokenizer: Its tokenizer.
        chat_template: How it wants chats written; None if it has none.
        name: For people.
        architecture: The field's word: "llama", "qwen2", ...
        quantization: Weight type: "Q4_1", "BF16", ...; "Q8_0 of BF16" if the file's was rounded.
        num_parameters: Weights, tied ones once.
        weights_bytes: Memory of the weights.
        model_context_tokens: What the model was made for.
        fingerprint: Names weights and compute type; the same in every process.
        placement: How weights are kept and where, for people; empty if all are as the path has them,
            on the device.
        converted: Which of the file's types became others because nothing computes with them, for
            people; empty if none did.
        has_experts: Whether a token is computed by a part of the weights, as far as is known.
    """

    model: "nn.Module | LanguageModel"
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    name: str
    architecture: str
    quantization: str
    num_parameters: int
    weights_bytes: int
    model_context_tokens: int
    fingerprint: bytes
    placement: str = ""
    converted: str = ""
    has_experts: bool = False

    @property
    def module(self) -> nn.Module:
        """The model of transformers.

        Raises:
            TypeError: It is computed another way.
        """
        if not isinstance(self.model, nn.Module):
            raise TypeError("this model is none of transformers")
        return self.model


def load_model(
    path: Path | str,
    *,
    device: str = "cpu",
    dtype: DtypeName = "auto",
    backend: BackendName = "bridge",
    num_threads: int = 1,
    weights: WeightTypeName = "auto",
    cache_dir: Path | None = None,
    kv: KvWish | None = None,
    on_progress: ProgressCallback | None = None,
) -> LoadedModel:
    """Load a model onto a device.

    Args:
        path: A .gguf file, or a folder with config.json, tokenizer.json and safetensors.
        device: A torch device: "cpu", "cuda", "cuda:1", "mps", "xpu".
        dtype: Type of weights and activations; "auto" chooses for device and free memory.
        backend: What is to compute it; see `EngineConfig`.
        num_threads: CPU threads of a step, where our kernels compute.
        weights: How weights are kept; see `EngineConfig`.
        cache_dir: Where weights that were rounded at load are kept; None for nowhere.
        kv: What is to be kept beside the weights; None for what a model is made for.
        on_progress: Called in this thread with fractions that never fall, the last one 1.0.

    Raises:
        ModelFileError: The file or folder is not sound; names it and the reason.
        UnsupportedModelError: It is sound, but of a kind that is not known, or not by this backend.
        NotEnoughMemoryError: The weights do not fit.
        CpuOnlyError: It is for the CPU alone, and another device or the bridge is wished for.
    """
    path = Path(path)
    started = time.perf_counter()
    reporter = LoadReporter(on_progress)
    wish = Wish(device, dtype, backend, num_threads, weights, cache_dir, kv or KvWish())
    files = WeightFiles.seen_at(path)
    load = _load_folder if os.path.isdir(path) else _load_gguf
    loaded = load(files, wish, reporter)
    logger.info(
        "loaded %s (%s, %.0f million weights) in %.1f s",
        loaded.architecture,
        loaded.quantization,
        loaded.num_parameters / 1e6,
        time.perf_counter() - started,
    )
    reporter.finish()
    return loaded


def check_model(path: Path | str) -> None:
    """Look at the files of a model without its weights, a fraction of a second.

    Raises:
        ModelFileError: The file or folder is not sound; names it and the reason.
        UnsupportedModelError: It is sound, but of a kind that is not known.
    """
    path = Path(path)
    if os.path.isdir(path):
        folder_loading.check_config(check_folder(path))
        return
    with GgufFile.read(path) as file:
        plan_model(file)
        gguf_loading.check_weight_types(file)


def _load_gguf(files: WeightFiles, wish: Wish, reporter: LoadReporter) -> LoadedModel:
    path = files.path
    reporter.begin("Reading the file", until=0.05)
    with GgufFile.read(path) as file:
        plan = plan_model(file)
        _refuse_other_ways(plan, wish, path)
        gguf_loading.check_weight_types(file)
        num_parameters = sum(
            tensor.num_elements
            for name, tensor in file.tensors.items()
            if not plan.is_known_tensor(name)
        )
        reporter.begin("Reading the vocabulary", until=0.15)
        tokenizer = tokenizer_from_metadata(file.metadata, path)
        template = _chat_template(file.metadata.get("tokenizer.chat_template"), tokenizer)
        source = ModelSource(
            path=path,
            files=files,
            num_parameters=num_parameters,
            fingerprint=file.fingerprint(),
            describe=lambda: describe_gguf(plan, file),
            has_bridge=not plan.family.is_ours_alone,
            make_module=lambda dtype, reporter, max_memory: gguf_loading.load_module(
                plan,
                file,
                device=wish.device,
                dtype=dtype,
                reporter=reporter,
                max_memory=max_memory,
            ),
        )
        made = make_model(source, wish, reporter)
        return LoadedModel(
            model=made.model,
            tokenizer=tokenizer,
            chat_template=template,
            name=_file_name(path, file.metadata.get("general.name")),
            architecture=plan.architecture,
            quantization=_quantization(gguf_loading.describe_quantization(file), made),
            num_parameters=made.num_parameters,
            weights_bytes=made.weights_bytes,
            model_context_tokens=int(str(plan.config["max_position_embeddings"])),
            fingerprint=source.fingerprint + made.arithmetic.encode(),
            placement=made.placement,
            converted=made.converted,
            has_experts=made.has_experts,
        )


def _refuse_other_ways(plan: GgufPlan, wish: Wish, path: Path) -> None:
    """Refuse what is wished for if our decoder alone computes the model, and experts on the CPU alone."""
    if not plan.family.is_ours_alone:
        return
    if plan.has_experts and torch.device(wish.device).type != "cpu":
        raise CpuOnlyError(
            path,
            f"Quire computes experts of the architecture {plan.architecture!r} on the CPU alone.",
            hint="Choose the device cpu and the backend auto.",
        )
    if wish.backend == "bridge":
        raise UnsupportedModelError(
            path,
            f"Quire computes models of the architecture {plan.architecture!r} by its own decoder alone.",
            hint="Choose the backend auto.",
        )


def _load_folder(files: WeightFiles, wish: Wish, reporter: LoadReporter) -> LoadedModel:
    path = files.path
    reporter.begin("Reading the folder", until=0.05)
    folder = check_folder(path)
    config = folder_loading.check_config(folder)
    model_type = str(config["model_type"])
    reporter.begin("Reading the vocabulary", until=0.15)
    tokenizer = tokenizer_from_folder(path)
    template = _chat_template(chat_template_from_folder(path), tokenizer)
    with FolderWeights(folder) as file:
        source = ModelSource(
            path=path,
            files=files,
            num_parameters=folder.num_parameters,
            fingerprint=folder.fingerprint(),
            describe=lambda: describe_folder(config, file),
            make_module=lambda dtype, reporter, max_memory: folder_loading.load_module(
                folder,
                model_type,
                device=wish.device,
                dtype=dtype,
                reporter=reporter,
                max_memory=max_memory,
            ),
        )
        made = make_model(source, wish, reporter)
    if made.spec is not None:
        context_tokens = made.spec.context_tokens
    else:
        assert isinstance(made.model, nn.Module)
        context_tokens = folder_loading.context_tokens(made.model)
    return LoadedModel(
        model=made.model,
        tokenizer=tokenizer,
        chat_template=template,
        name=folder_loading.folder_name(path),
        architecture=model_type,
        quantization=_quantization(folder.weight_type, made),
        num_parameters=made.num_parameters,
        weights_bytes=made.weights_bytes,
        model_context_tokens=context_tokens,
        fingerprint=source.fingerprint + made.arithmetic.encode(),
        placement=made.placement,
        converted=made.converted,
        has_experts=made.has_experts,
    )


def _quantization(stored: str, made: MadeModel) -> str:
    return f"{made.rounded_to} of {stored}" if made.rounded_to else stored


def _file_name(path: Path, title: object) -> str:
    """Name the model for people: the file's name, which they chose, without the weight type.

    Titles inside files are often made by a converter from a training run's folder.
    """
    name = _WEIGHT_TYPE_SUFFIX.sub("", path.stem)
    if name.lower() in _GENERIC_NAMES and isinstance(title, str) and title.strip():
        return title.strip()
    return name


def _chat_template(source: object, tokenizer: Tokenizer) -> ChatTemplate | None:
    if not isinstance(source, str) or not source.strip():
        return None
    try:
        return ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token)
    except ChatTemplateError as error:
        logger.warning("the model's chat template cannot be used: %s", error)
        return None
