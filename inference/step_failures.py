"""What went wrong in a step, in words for people. Any thread."""

import torch

from inference.errors import ComputeError
from inference.model.library_errors import first_line
from inference.model.memory import is_out_of_memory


def failure_of(error: Exception) -> ComputeError:
    """The error of a request whose step or token failed.

    Args:
        error: What torch or the system raised; it becomes the cause.
    """
    words = first_line(error).removesuffix(".")
    if is_out_of_memory(error):
        failure = ComputeError(
            f"The model ran out of memory: {words}.",
            hint="Close other programs, or make the memory of the model smaller in the settings.",
        )
    elif isinstance(error, torch.AcceleratorError):
        # After an invalid access, say, CUDA refuses all that the process asks of it until it ends.
        failure = ComputeError(f"The graphics card failed: {words}.", hint="Start Quire again.")
    else:
        failure = ComputeError(
            f"The model could not go on: {words}.", hint="Try again, or load the model again."
        )
    failure.__cause__ = error
    return failure
