"""A bounded memory for keys. Pure Python; owned by the KV cache manager."""

from collections import OrderedDict

from inference.kv_cache.block import BlockHash


class RecentKeys:
    """The last keys that were noted; the oldest are forgotten."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._keys: OrderedDict[BlockHash, None] = OrderedDict()  # oldest first

    def __contains__(self, key: BlockHash) -> bool:
        """Whether the key was noted lately."""
        return key in self._keys

    def note(self, key: BlockHash) -> None:
        """Remember a key as the newest."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)

    def discard(self, key: BlockHash) -> None:
        """Forget a key, if it is there."""
        self._keys.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._keys.clear()
