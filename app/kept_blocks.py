"""Forgets what models have read, whether a model is open or not. Pure Python; engine thread."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from app.engine_like import EngineLike
from inference.kv_cache.disk.store import clear_all, forget_all_but, forget_conversation

logger = logging.getLogger(__name__)


def forget_chat(engine: EngineLike | None, kv_dir: Path | None, conversation_id: str) -> int:
    """Remove what only this chat has cached, on all tiers and for all models.

    Args:
        engine: The open one; without it only files are there.
        kv_dir: The folder of the files; None if there is none.
        conversation_id: The chat.

    Returns:
        Bytes freed.
    """
    if engine is not None:
        return engine.forget(conversation_id)
    return _on_disk(kv_dir, lambda folder: forget_conversation(folder, conversation_id))


def forget_all(engine: EngineLike | None, kv_dir: Path | None) -> int:
    """Remove all that is cached; the arguments are those of `forget_chat`.

    Returns:
        Bytes freed.
    """
    if engine is not None:
        return engine.clear_cache()
    return _on_disk(kv_dir, clear_all)


def keep_only(kv_dir: Path | None, conversation_ids: Iterable[str]) -> int:
    """Remove from the disk what only chats used that are not among these.

    Returns:
        Bytes freed.
    """
    return _on_disk(kv_dir, lambda folder: forget_all_but(folder, conversation_ids))


def _on_disk(kv_dir: Path | None, action: Callable[[Path], int]) -> int:
    if kv_dir is None:
        return 0
    try:
        return action(kv_dir)
    except OSError as error:
        logger.warning("Files of %s could not be removed: %s", kv_dir, error)
        return 0
