"""Which chats use which text. Pure Python; owned by the KV cache manager, on the engine thread.

Text is shared between chats, and a chat can be deleted: what only it used must go then. Only text
that lies in a block or a slot has owners.
"""

from collections.abc import Set

from inference.kv_cache.block import BlockHash


class Owners:
    """Chats and keys, both ways."""

    def __init__(self) -> None:
        self._keys_of: dict[str, dict[BlockHash, None]] = {}
        self._owners_of: dict[BlockHash, set[str]] = {}

    def __len__(self) -> int:
        """How many chats use anything."""
        return len(self._keys_of)

    def note(self, owner: str, key: BlockHash) -> None:
        """Say that a chat uses a text."""
        self._keys_of.setdefault(owner, {})[key] = None
        self._owners_of.setdefault(key, set()).add(owner)

    def of(self, key: BlockHash) -> Set[str]:
        """The chats that use a text."""
        return self._owners_of.get(key, frozenset())

    def keys(self) -> Set[BlockHash]:
        """All texts that a chat uses."""
        return self._owners_of.keys()

    def drop(self, key: BlockHash) -> None:
        """Forget a text that lies nowhere any more."""
        for owner in self._owners_of.pop(key, ()):
            self._forget_key(owner, key)

    def forget(self, owner: str) -> list[BlockHash]:
        """Forget a chat.

        Returns:
            Texts that only it used, the last noted first, so that tails come before heads.
        """
        alone = []
        for key in reversed(self._keys_of.pop(owner, {})):
            owners = self._owners_of[key]
            owners.remove(owner)
            if not owners:
                del self._owners_of[key]
                alone.append(key)
        return alone

    def check_integrity(self) -> None:
        """Prove that both directions agree.

        Raises:
            RuntimeError: They do not.
        """
        one = {(owner, key) for owner, keys in self._keys_of.items() for key in keys}
        other = {(owner, key) for key, owners in self._owners_of.items() for owner in owners}
        if one != other or not all(self._keys_of.values()) or not all(self._owners_of.values()):
            raise RuntimeError(f"{len(one)} uses are noted by chat and {len(other)} by text.")

    def _forget_key(self, owner: str, key: BlockHash) -> None:
        keys = self._keys_of[owner]
        del keys[key]
        if not keys:
            del self._keys_of[owner]
