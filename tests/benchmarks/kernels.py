"""How fast the kernels' matrix products are: `python -m tests.benchmarks.kernels`.

For each type and shape: GB/s of weights for one row, beside what the machine reads in the same
moments; the time of more rows relative to one; and multiply-adds per second of 64 and 512 rows, beside those of torch's
product of floats. The other way to read a prompt would be to unpack a tile of weights and use that: unpacking, which takes
time of its own, is left out of it here.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inference.kernels.library import Kernels, Team, load_kernels, why_no_kernels
from tests.benchmarks.reading import STREAMED_BYTES, Reader
from tests.inference.kernel_matrices import Floats, Packed, pack, random_rows

SHAPES = ((1536, 576), (576, 1536), (49152, 576), (8960, 1536), (1536, 8960))
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "F32")
FEW = (1, 2, 3, 4, 6, 8, 16)
MANY = (64, 512)
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    threads: int
    types: Sequence[str]
    shapes: Sequence[tuple[int, int]]


def main() -> None:
    """Measure what the arguments say, print lines for people and one for programs."""
    kernels = load_kernels()
    if kernels is None:
        sys.exit(why_no_kernels())
    options = _options(kernels)
    team = kernels.new_team(options.threads)
    torch.set_num_threads(options.threads)
    reader = Reader(options.threads)
    print(f"{kernels.isa}, {options.threads} threads; reading alone: {reader.measure():.1f} GB/s")
    results = []
    for type_name in options.types:
        for rows, columns in options.shapes:
            if columns % 256 and type_name.endswith("_K"):
                continue
            result = _measure(kernels, team, reader, type_name, rows, columns)
            results.append(result)
            print(_line(result), flush=True)
    facts = {"isa": kernels.isa, "threads": options.threads}
    print(json.dumps({"benchmark": "kernels", **facts, "results": results}))


def _options(kernels: Kernels) -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", help="an instruction set, if not the best")
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument("--shapes", nargs="+", default=[f"{n}x{k}" for n, k in SHAPES])
    given = parser.parse_args()
    if given.isa and not kernels.set_isa(given.isa):
        sys.exit(f"this processor or build has no {given.isa}")
    shapes = [(int(n), int(k)) for n, k in (shape.split("x") for shape in given.shapes)]
    return Options(given.threads, given.types, shapes)


def _measure(
    kernels: Kernels, team: Team, reader: Reader, type_name: str, rows: int, columns: int
) -> dict[str, object]:
    data = random_rows(type_name, rows, columns)
    first = pack(kernels, type_name, data, columns)
    copies = max(1, STREAMED_BYTES // len(first.memory))
    matrices = [first, *(pack(kernels, type_name, data, columns) for _ in range(copies - 1))]
    seconds: dict[int, list[float]] = {M: [] for M in (*FEW, *MANY)}
    of_floats: dict[int, list[float]] = {M: [] for M in MANY}
    floats = torch.randn(rows, columns)
    reading = []
    for _ in range(ROUNDS):
        reading.append(reader.measure())
        for M in FEW:
            seconds[M].append(_seconds(kernels, team, matrices, M) / copies)
        for M in MANY:
            used = matrices[: max(1, round(2e9 / (rows * columns * M)))]
            seconds[M].append(_seconds(kernels, team, used, M) / len(used))
            of_floats[M].append(_seconds_of_floats(floats, M))
    medians = {M: statistics.median(times) for M, times in seconds.items()}
    return {
        "type": type_name,
        "rows": rows,
        "columns": columns,
        "GB/s": len(first.memory) / medians[1] / 1e9,
        "reading": statistics.median(reading),
        "relative": {M: medians[M] / medians[1] for M in FEW[1:]},
        "GMAC/s": {M: rows * columns * M / medians[M] / 1e9 for M in MANY},
        "GMAC/s of floats": {
            M: rows * columns * M / statistics.median(of_floats[M]) / 1e9 for M in MANY
        },
    }


def _seconds(kernels: Kernels, team: Team, matrices: Sequence[Packed], num_x: int) -> float:
    M = num_x
    N, K = matrices[0].matrix.num_rows, matrices[0].matrix.num_columns
    x: Floats = np.random.default_rng(0).standard_normal((M, K)).astype(np.float32)
    y: Floats = np.zeros((M, N), dtype=np.float32)
    began = time.perf_counter()
    for packed in matrices:
        kernels.matmul(team, packed.matrix, x.ctypes.data, M, K, y.ctypes.data, N)
    return time.perf_counter() - began


def _seconds_of_floats(weights: torch.Tensor, num_x: int) -> float:
    x = torch.randn(num_x, weights.shape[1])
    began = time.perf_counter()
    torch.mm(x, weights.T)
    return time.perf_counter() - began


def _line(result: dict[str, object]) -> str:
    relative, many, floats = result["relative"], result["GMAC/s"], result["GMAC/s of floats"]
    assert isinstance(relative, dict)
    assert isinstance(many, dict)
    assert isinstance(floats, dict)
    share = float(str(result["GB/s"])) / float(str(result["reading"]))
    return (
        f"{result['type']:>5} {result['rows']:>6} x {result['columns']:<5}"
        f"{result['GB/s']:6.1f} of {result['reading']:5.1f} GB/s ({share:4.0%})   rows "
        + " ".join(f"{M}: {times:.2f}" for M, times in relative.items())
        + "   GMAC/s "
        + " ".join(f"{M}: {rate:.0f} ({floats[M]:.0f})" for M, rate in many.items())
    )


if __name__ == "__main__":
    main()
