"""How well each engine predicts a text from the same file: `python -m tests.benchmarks.perplexity`.

    quire        our kernels, which round inputs of products to 8 bits
    reference    our decoder in torch, the same weights in float32 throughout
    llama.cpp    llama-cpp-python, if it is installed

Behind +- is the standard error of the difference to the reference, from the differences of single tokens.
"""

import argparse
import math
from pathlib import Path
from typing import cast

import psutil
import torch
from torch import Tensor
from torch.nn import functional

from app.starter_model import find_starter_model
from inference.model.base import LanguageModel
from inference.model.kv_quality import token_losses
from inference.model.loader import load_model
from tests.benchmarks.kv_schemes import DOCUMENTS, MAX_TEXT_TOKENS, ROOT, make_runner


def read_token_ids(path: Path, texts: list[Path], num_tokens: int) -> list[int]:
    """The first tokens of some texts, as the model's own tokenizer has them."""
    loaded = load_model(path, device="cpu", num_threads=1)
    text = "".join(each.read_text(encoding="utf-8") for each in texts)
    return loaded.tokenizer.encode_text(text)[:num_tokens]


def our_losses(path: Path, token_ids: list[int], *, backend: str, threads: int) -> Tensor:
    """See `token_losses`; keys and values in fp16."""
    torch.set_num_threads(threads)
    loaded = load_model(
        path,
        device="cpu",
        dtype="float32",
        backend="fast" if backend == "quire" else "torch",
        num_threads=threads,
    )
    model = cast("LanguageModel", loaded.model)
    return token_losses(make_runner(model, "fp16", len(token_ids)), token_ids)


def llama_losses(path: Path, token_ids: list[int], *, threads: int) -> Tensor:
    """The same of llama.cpp, which keeps keys and values in fp16 as well."""
    import llama_cpp

    llama = llama_cpp.Llama(
        str(path),
        n_ctx=len(token_ids),
        n_threads=threads,
        n_threads_batch=threads,
        n_gpu_layers=0,
        logits_all=True,
        verbose=False,
    )
    llama.eval(token_ids)
    following = torch.tensor(token_ids[1:])
    losses = [
        functional.cross_entropy(torch.from_numpy(row)[None], following[index : index + 1])
        for index, row in enumerate(llama.scores[: len(following)])
    ]
    llama.close()
    return torch.stack(losses).double()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.perplexity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=find_starter_model())
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--text", type=Path, nargs="*", default=[ROOT / name for name in DOCUMENTS])
    parser.add_argument("--text-tokens", type=int, default=MAX_TEXT_TOKENS)
    parser.add_argument("--peers", nargs="*", default=["llama.cpp"], choices=("llama.cpp",))
    arguments = parser.parse_args()
    path, threads = arguments.model.resolve(), arguments.threads
    token_ids = read_token_ids(path, arguments.text, arguments.text_tokens)
    losses = {
        name: our_losses(path, token_ids, backend=name, threads=threads)
        for name in ("reference", "quire")
    }
    if arguments.peers:
        losses["llama.cpp"] = llama_losses(path, token_ids, threads=threads)
    print(f"{path.stem}, {threads} threads, text of {len(token_ids)} tokens")
    for name, each in losses.items():
        more = each - losses["reference"]
        error = 100 * float(more.std()) / math.sqrt(len(more))
        print(
            f"{name:<12}{math.exp(each.mean()):>10.4f}"
            f"{100 * math.expm1(more.mean()):>+9.3f} % +- {error:.3f}"
        )


if __name__ == "__main__":
    main()
