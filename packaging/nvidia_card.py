"""Whether there is an NVIDIA card, and whether the installed torch can use it. Standard library only."""

import glob
import os
import re
import sys

_ON_LINUX = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1")

UNUSED_CARD = (
    "There is an NVIDIA driver, and the torch that was installed computes on the CPU only: "
    'README.md tells under "Start" how to use the card.'
)


def has_nvidia_driver() -> bool:
    """Whether this is Linux or Windows with an NVIDIA driver."""
    if sys.platform == "win32":
        system = os.environ.get("SYSTEMROOT", "C:\\Windows")
        return os.path.exists(os.path.join(system, "System32", "nvcuda.dll"))
    return sys.platform.startswith("linux") and any(map(os.path.exists, _ON_LINUX))


def has_torch_for_cpu(environment: str) -> bool:
    """Whether the torch in an environment is one without code for any card; False if there is none."""
    folder = glob.escape(environment)
    for parts in (("Lib", "site-packages"), ("lib", "python*", "site-packages")):
        for path in glob.glob(os.path.join(folder, *parts, "torch", "version.py")):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            found = re.findall(r"^(?:cuda|hip|xpu)\b[^=\n]*=\s*(\S+)", text, re.MULTILINE)
            return bool(found) and set(found) == {"None"}
    return False
