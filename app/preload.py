"""Imports the engine, and with it torch and transformers, without stopping the window. Any thread.

`import torch` makes the dynamic linker work for some hundred milliseconds, and CPython holds its
global lock meanwhile, so the GUI thread stands still. A call through ctypes gives the lock back:
so the linker is called that way first, and the import finds the libraries loaded. Windows needs
nothing, since torch itself loads its libraries through ctypes there. What the imports then make, 300,000
objects for good, is kept from the garbage collector, whose searches would stop all threads.
"""

import ctypes
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from inference.model.first_import import quick_first_import

if TYPE_CHECKING:
    from inference.engine import Engine

logger = logging.getLogger(__name__)

# In the order of their dependence. The first makes what it needs visible to all, as torch does.
_LIBRARIES = ("torch_global_deps", "c10", "torch_cpu", "torch_cuda", "torch", "torch_python")


def import_engine() -> "type[Engine]":
    """Give the engine's class; only the first call takes long."""
    preload_torch()
    with quick_first_import():
        from inference.engine import Engine  # heavy: torch and transformers
    return Engine


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
