"""All that can only be seen on a GPU, in one go: `python -m tests.benchmarks.gpu_check --out FILE`.

It takes about so many minutes at most as `--minutes` says (8): no part is begun that would not end in time if it
took as long as the longest so far. What is left out is told. A part that fails is told and does not stop the rest.
`--device cpu --quick` runs the same lines here.

    device      what it is, and the bandwidth that decoding is held against: a copy, read and written
    kernels     attention kernels against the reference, on this device
    families    logits of tiny models on the device against the CPU, in float32 and in bfloat16
    products    matrices that stay in 4 or 8 bits against floats, by the number of rows
    copies      a block from the device to the host and back
    MODEL       each file: perplexity of a text against the CPU's in float32; decode against bandwidth, prefill,
                several chats, a whole reply, memory; with graphs and without, each attention, each way
                to keep weights; with half of its weights on the host; and guessing ahead: rows verified
                in a step against one, guesses from the text, and by the model of `--draft`
"""

import argparse
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from app.starter_model import find_starter_model
from inference.errors import EngineError
from tests.benchmarks import gpu_parts
from tests.benchmarks.gpu_models import REPLY_TOKENS, OpenModel, Result, measure_variant
from tests.benchmarks.gpu_speculation import check_speculation
from tests.benchmarks.gpu_split import check_split

logger = logging.getLogger("gpu_check")

VARIANTS: dict[str, Result] = {
    "as it comes": {},
    "without graphs": {"cuda_graphs": False},
    "float weights": {"weights": "float"},
    "blocks": {"attention_backend": "blocks"},
    "flash": {"attention_backend": "flash"},
    "int8 KV": {"kv_scheme": "int8"},
    "Q8_0 weights": {"weights": "Q8_0"},
}


class Check:
    """What is checked, and what came of it."""

    def __init__(self, *, minutes: float) -> None:
        self.results: dict[str, Result] = {}
        self._end = time.monotonic() + 60 * minutes
        self._longest = 0.0  # seconds of a part

    def part(self, name: str, measure: Callable[[], Result]) -> Result:
        """Run one part; whatever happens in it, the rest goes on."""
        began = time.monotonic()
        if began + self._longest > self._end:
            found: Result = {"left out": "no time is left"}
        else:
            try:
                found = measure()
            except EngineError as error:
                found = {"not possible": str(error)}
            except Exception as error:
                logger.exception("%s failed", name)
                found = {"failed": f"{type(error).__name__}: {error}"}
        took_s = time.monotonic() - began
        self._longest = max(self._longest, took_s)
        found["took s"] = took_s
        self.results[name] = found
        print(f"\n{name}")
        for key, value in found.items():
            print(f"  {key:<40}{f'{value:.4g}' if isinstance(value, float) else value}")
        sys.stdout.flush()
        return found


def check_model(
    check: Check,
    path: Path,
    device: torch.device,
    bytes_per_second: float,
    *,
    draft: Path | None,
    is_quick: bool,
) -> None:
    """One file, in all variants."""

    def truth() -> Result:
        cpu = torch.device("cpu")
        opened = OpenModel(path, cpu, backend="torch", dtype="float32", weights="float")
        try:
            return {
                "perplexity": opened.perplexity(32 if is_quick else 512),
                "reply ids": list(opened.reply(4 if is_quick else REPLY_TOKENS).reply_ids),
            }
        finally:
            opened.close()

    expected = check.part(f"{path.stem}, CPU float32", truth)
    own = {"backend": "torch", "dtype": "float32"} if device.type == "cpu" else {}
    for name, config in VARIANTS.items():
        measure = partial(
            measure_variant, path, device, bytes_per_second, is_quick=is_quick, **{**own, **config}
        )
        found = check.part(f"{path.stem}, {name}", measure)
        if "perplexity" in expected and "perplexity" in found:
            found["perplexity against float32"] = found["perplexity"] / expected["perplexity"] - 1.0
            found["reply like float32, tokens"] = _common(found["reply ids"], expected["reply ids"])
    split = partial(check_split, path, device, is_quick=is_quick)
    check.part(f"{path.stem}, half on the host", split)
    guesses = partial(check_speculation, path, device, draft=draft, is_quick=is_quick, **own)
    check.part(f"{path.stem}, speculation", guesses)
    print_summary(check, path)


def _common(first: Sequence[int], second: Sequence[int]) -> float:
    """How many tokens two replies begin with alike."""
    pairs = zip(first, second, strict=False)
    return float(sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def print_summary(check: Check, path: Path) -> None:
    """The variants side by side."""
    rows = {name: check.results[f"{path.stem}, {name}"] for name in VARIANTS}
    columns = [
        key
        for key in rows["as it comes"]
        if key.endswith(("tok/s", "bandwidth", "float32", "tokens", "MB"))
    ]
    print(f"\n{path.stem}")
    for column in columns:
        cells = [
            f"{row[column]:>11.4g}" if isinstance(row.get(column), float) else f"{'-':>11}"
            for row in rows.values()
        ]
        print(f"  {column:<30}" + "".join(cells))
    print("  " + ", ".join(rows))
    first = rows["as it comes"].get("reply ids")
    same = rows["without graphs"].get("reply ids")
    print(f"  the reply with graphs is that without: {first is not None and first == same}")


def parse_arguments() -> argparse.Namespace:
    """What to check."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", type=Path, nargs="*", help="GGUF files; else the starter model")
    parser.add_argument("--draft", type=Path, help="a smaller model that guesses for each")
    parser.add_argument("--out", type=Path, help="where to write all numbers, as JSON")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--minutes", type=float, default=8.0)
    arguments = parser.parse_args()
    starter = find_starter_model()
    if not arguments.models and starter is not None:
        arguments.models = [starter]
    return arguments


def main() -> None:
    """Check, print, and write one file."""
    arguments = parse_arguments()
    device, is_quick = torch.device(arguments.device), arguments.quick
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("There is no CUDA device.")
    check = Check(minutes=arguments.minutes)
    facts = check.part("device", lambda: gpu_parts.check_device(device, is_quick=is_quick))
    check.part("kernels", lambda: gpu_parts.check_kernels(device))
    check.part("families", lambda: gpu_parts.check_families(device, is_quick=is_quick))
    check.part("products", lambda: gpu_parts.check_products(device, is_quick=is_quick))
    check.part("copies", lambda: gpu_parts.check_copies(device, is_quick=is_quick))
    bytes_per_second = 1e9 * facts.get("copy GB/s", float("nan"))
    for path in arguments.models:
        check_model(check, path, device, bytes_per_second, draft=arguments.draft, is_quick=is_quick)
    if arguments.out is not None:
        arguments.out.write_text(
            json.dumps({"benchmark": "gpu_check", "results": check.results}, indent=1),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
