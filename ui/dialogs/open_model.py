"""The system's own dialogs that choose a model. GUI thread."""

import os
from pathlib import Path

from PySide6.QtWidgets import QFileDialog, QWidget


class ModelFileDialog:
    """Chooses a GGUF file."""

    @classmethod
    def ask(cls, parent: QWidget | None, folder: str) -> str | None:
        """The chosen file; None if none was chosen. `folder` is where to begin."""
        path, _ = QFileDialog.getOpenFileName(
            parent, "Open a model file", folder, "Models (*.gguf);;All files (*)"
        )
        _give_back(parent)
        return path or None


class ModelFolderDialog:
    """Chooses a Hugging Face folder with safetensors files."""

    @classmethod
    def ask(cls, parent: QWidget | None, folder: str) -> str | None:
        """The chosen folder; None if none was chosen. `folder` is where to begin."""
        path = QFileDialog.getExistingDirectory(parent, "Open a model folder", folder)
        _give_back(parent)
        return path or None


def start_folder(model_path: str) -> str:
    """Where to look for models: beside the last one, else the home folder."""
    folder = Path(model_path).parent
    return str(folder if model_path and os.path.isdir(folder) else Path.home())


def _give_back(parent: QWidget | None) -> None:
    """Let the window have the keys again, as after our own dialogs."""
    if parent is not None:
        parent.activateWindow()
