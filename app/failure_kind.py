"""Why a reply or a load failed, as far as it decides what a person can do next. Pure Python."""

from typing import Literal

FailureKind = Literal[
    "model_file", "memory", "context_full", "template", "request", "compute", "bug"
]
