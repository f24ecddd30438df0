"""Several answers at once, in words. Pure Python."""

NUM_ANSWERS = 3
SEVERAL = f"{NUM_ANSWERS} answers"
SEVERAL_AT_ONCE = f"{SEVERAL} at once"
SEVERAL_TIP = f"Write {NUM_ANSWERS} answers at once, each as a version of its own"
STOP_ALL_TIP = "End all answers to this question; what there is of them is kept"


def running_text(num_others: int) -> str:
    """What is being written besides the version that is shown."""
    if num_others == 1:
        return "1 more answer is being written"
    return f"{num_others} more answers are being written"


def alike_text(reason: str) -> str:
    """Why only one of several answers is made; `reason` goes on after "because"."""
    return f"All answers would be the same, because {reason}. So one is made."


def alike_note(reason: str) -> str:
    """The same in few words, below what asks for several."""
    return f"One only, because {reason}"
