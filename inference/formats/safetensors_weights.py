"""The tensors of a folder of safetensors where they lie in its mapped files. Any thread."""

import logging
import mmap
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from inference.errors import ModelFileError
from inference.formats.safetensors_folder import ModelFolder
from inference.formats.safetensors_header import SafetensorsTensor
from inference.formats.weight_file import mapped_bytes, release_pages
from inference.regular_file import open_regular

logger = logging.getLogger(__name__)


class FolderWeights:
    """A checked folder, its files mapped; a `WeightFile`.

    The files stay mapped until `close`, or until the last tensor made by `tensor_data` is gone.

    Attributes:
        path: The folder.
        tensors: Of all files, by name.
    """

    def __init__(self, folder: ModelFolder) -> None:
        """Map the files.

        Raises:
            ModelFileError: One cannot be read any more, or has another length than when it was checked.
        """
        self.path: Path = folder.path
        self.tensors: Mapping[str, SafetensorsTensor] = {
            name: tensor for header in folder.headers for name, tensor in header.tensors.items()
        }
        self._mappings: list[mmap.mmap] = []
        self._places: dict[str, mmap.mmap] = {}
        try:
            for header in folder.headers:
                mapping = _map_file(header.path, header.size)
                self._mappings.append(mapping)
                self._places.update(dict.fromkeys(header.tensors, mapping))
        except BaseException:
            self.close()
            raise

    def tensor_data(self, name: str) -> Tensor:
        """See `WeightFile`. NOTE: writing to the tensor would end the process."""
        tensor = self.tensors[name]
        return mapped_bytes(self._places[name], tensor.offset, tensor.num_bytes)

    def release(self, name: str) -> None:
        """See `WeightFile`."""
        tensor = self.tensors[name]
        release_pages(self._places[name], tensor.offset, tensor.num_bytes)

    def close(self) -> None:
        """Drop the mappings; tensors of `tensor_data` that still exist keep theirs until they go."""
        self._places.clear()
        while self._mappings:
            try:
                self._mappings.pop().close()
            except BufferError:
                logger.debug("tensors still use the mapping of a file")

    def __enter__(self) -> "FolderWeights":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _map_file(path: Path, size: int) -> mmap.mmap:
    try:
        with open_regular(path) as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: it is empty now
        raise ModelFileError(
            path, f"The file cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error
    if len(mapping) != size:
        mapping.close()
        raise ModelFileError(path, "The file was changed while it was opened.")
    return mapping
