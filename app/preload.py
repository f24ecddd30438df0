"""Imports the engine, and with it torch and transformers, without stopping the window. Any thread.

`import torch` makes the dynamic linker work for some hundred milliseconds, and CPython holds its
global lock meanwhile, so the GUI thread stands still. A call through ctypes gives the lock back:
so the linker is called that way first, and the import finds the libraries loaded. Windows needs
nothing, since torch itself loads its libraries through ctypes there. What the imports then make, 300,000
objects for good, is kept from the garbage collector, whose searches would stop all threads.

The first model that is opened waits for all that, so memory for its weights is made ready meanwhile.
"""

import ctypes
import importlib.util
import logging
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from inference.config import EngineConfig
from inference.kernels.library import why_no_kernels
from inference.model.first_import import quick_first_import
from inference.model.memory_ahead import memory_ahead

if TYPE_CHECKING:
    from inference.engine import Engine

logger = logging.getLogger(__name__)

# In the order of their dependence. The first makes what it needs visible to all, as torch does.
_LIBRARIES = ("torch_global_deps", "c10", "torch_cpu", "torch_cuda", "torch", "torch_python")

_PACKED_SHARE = (
    1.05  # of a GGUF file are its packed weights at the most, if none of them becomes another type
)


def import_engine() -> "type[Engine]":
    """Give the engine's class; only the first call takes long."""
    preload_torch()
    with quick_first_import():
        from inference.engine import Engine  # heavy: torch and transformers
    return Engine


def weights_ahead(path: str, config: EngineConfig) -> AbstractContextManager[None]:
    """Have the memory of a model's weights made ready while torch is imported and the model is opened.

    Only where that is of use: on a CPU with our kernels, which pack a GGUF file into about its own size, and
    if half of the free memory is enough.
    """
    is_packed = (
        "torch" not in sys.modules
        and path.endswith(".gguf")
        and config.device in ("auto", "cpu")
        and config.backend in ("auto", "fast")
        and config.weights != "float"
        and not why_no_kernels()
    )
    num_bytes = int(_PACKED_SHARE * _file_bytes(path)) if is_packed else 0
    if 2 * num_bytes > psutil.virtual_memory().available or os.cpu_count() == 1:
        num_bytes = 0
    return memory_ahead(num_bytes)


def _file_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size if os.path.isfile(path) else 0
    except OSError:
        return 0


def preload_torch() -> int:
    """Load what there is of torch's libraries; what fails is left to `import torch`.

    Returns:
        How many libraries were loaded.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return 0
    return preload_libraries(Path(spec.origin).parent / "lib", _LIBRARIES)


def preload_libraries(folder: Path, names: tuple[str, ...]) -> int:
    """Load the libraries of these names (without "lib" and ending) from `folder`, in order.

    Returns:
        How many were loaded.
    """
    if sys.platform == "win32" or "torch" in sys.modules:
        return 0
    ending = ".dylib" if sys.platform == "darwin" else ".so"
    linker = ctypes.CDLL(None)
    linker.dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    linker.dlopen.restype = ctypes.c_void_p
    num_loaded = 0
    for number, name in enumerate(names):
        path = folder / f"lib{name}{ending}"
        if not path.exists():
            continue
        scope = os.RTLD_GLOBAL if number == 0 else os.RTLD_LOCAL
        if linker.dlopen(os.fsencode(path), os.RTLD_NOW | scope):
            num_loaded += 1
        else:
            logger.info("%s is left to the import", path.name)
    return num_loaded
