"""What transformers and safetensors raise for configurations and weights that they cannot use."""

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

LIBRARY_ERRORS = (
    StrictDataclassError,
    SafetensorError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RuntimeError,
    ImportError,
    ZeroDivisionError,
)


def first_line(error: BaseException) -> str:
    """Give the first line of an error's text, shortened; its type if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
