"""Names all that keys and values depend on, so that none are used for what they do not belong to. Any thread."""

import hashlib

from inference.kv_cache.disk.trail import Maker
from inference.kv_cache.tensors import KvTensors
from inference.model.base import LanguageModel
from inference.model.loader import LoadedModel


def identity_of(loaded: LoadedModel, whole: bytes) -> bytes:
    """Name weights and compute type: by all their bytes if these were read.

    Device and RAM never outlive the model, so for them the samples of the fingerprint do.

    Args:
        loaded: What is known of the model.
        whole: The digest of all bytes of its files; empty if they were not read.
    """
    if not whole:
        return loaded.fingerprint
    return hashlib.blake2b(whole + loaded.fingerprint, digest_size=32).digest()


def namespace_of(identity: bytes, model: LanguageModel, kv: KvTensors) -> bytes:
    """Name all that the values in a block depend on, besides the text."""
    digest = hashlib.blake2b(digest_size=32)
    shapes = [(layer.num_kv_heads, layer.head_dim) for layer in kv.geometry]
    for part in ("kv-2", kv.scheme.name, str(kv.block_size), str(shapes), model.config_text):
        digest.update(f"{len(part)}:{part}".encode())
    digest.update(identity)
    return digest.digest()


def maker_of(loaded: LoadedModel, whole: bytes, model: LanguageModel, kv: KvTensors) -> Maker:
    """What the namespace names as one, in parts, so that a reason can be told."""
    computing = f"{kv.block_size} {model.config_text}".encode()
    return Maker.of(
        fingerprint=loaded.fingerprint,
        weights=whole,
        computing=loaded.fingerprint + computing,
        precision=kv.scheme.name.encode(),
    )
