"""What transformers and safetensors raise for configurations and weights that they cannot use."""

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from inference.errors import as_sentence

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
    """Give an error's first sentence, shortened, with its stop; its type if it has no text."""
    if isinstance(error, KeyError):
        return f"{str(error)[:200]} is not known."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    for line in lines[1:]:
        if not text.endswith(":"):
            break
        text = f"{text} {line}"
    return as_sentence(text[:300])
