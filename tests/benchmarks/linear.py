"""How fast a layer's matrix product is, by rows and by kernel: `python -m tests.benchmarks.linear`.

Prints GB of weights read per second for few rows and GFLOP/s for many. The weights are more than
any cache holds. This is the measurement behind `inference/model/linear.py`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from inference.model.linear import FastLinear

SHAPES = ((1536, 576), (576, 1536), (576, 576), (49152, 576))
ROWS = (1, 2, 4, 8, 16, 64, 256)
ROUNDS = 5


def parse_arguments() -> argparse.Namespace:
    """There are no options, but for --help."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.linear", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser.parse_args()


def main() -> None:
    """Measure all shapes with both kernels, alternating, and print the medians."""
    parse_arguments()
    results = []
    with torch.inference_mode():
        for shape in SHAPES:
            for rows in ROWS:
                result = _measure(shape, rows)
                results.append(result)
                print(
                    f"{shape[0]:>6} x {shape[1]:<5} rows {rows:>4}   torch {result['torch']:7.1f}   "
                    f"ours {result['ours']:7.1f}   {result['unit']}"
                )
    print(json.dumps({"benchmark": "linear", "threads": torch.get_num_threads(), "rows": results}))


def _measure(shape: tuple[int, int], rows: int) -> dict[str, object]:
    N, K = shape
    layers = [nn.Linear(K, N, bias=False) for _ in range(max(2, int(1.2e8 / (4 * N * K))))]
    fast = [FastLinear(layer) for layer in layers]
    given = torch.randn(rows, K)
    seconds: dict[str, list[float]] = {"torch": [], "ours": []}
    for _ in range(ROUNDS + 1):  # the first round warms up
        seconds["torch"].append(_seconds(layers, given))
        seconds["ours"].append(_seconds(fast, given))
    is_many = rows >= 16
    amount = len(layers) * N * K * (2 * rows if is_many else 4) / 1e9
    medians = {name: amount / statistics.median(times[1:]) for name, times in seconds.items()}
    return {"N": N, "K": K, "M": rows, "unit": "GFLOP/s" if is_many else "GB/s", **medians}


def _seconds(layers: "list[nn.Linear] | list[FastLinear]", given: Tensor) -> float:
    run: Callable[[Tensor], Tensor]
    began = time.perf_counter()
    for run in layers:
        run(given)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
