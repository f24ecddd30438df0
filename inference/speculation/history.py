"""What one reply's own history says comes next. Pure Python; engine thread."""

from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf

from inference.config import MAX_DRAFT_TOKENS
from inference.speculation.base import Proposal
from inference.speculation.ngram import NgramProposer
from inference.speculation.shadow import Shadow


class History:
    """Prompt and reply of one sequence, never of two: a chat's text is no hint for another chat."""

    def __init__(self, token_ids: SequenceOf[int], stop_ids: Collection[int]) -> None:
        """Read what is there.

        Args:
            token_ids: Of the sequence, so far.
            stop_ids: A guess ends with the first of these.
        """
        self._ngram = NgramProposer(token_ids, stop_ids=stop_ids)
        self._num_known = len(token_ids)
        self._shadow: Shadow | None = None

    def propose(self, token_ids: SequenceOf[int], num_tokens: int) -> Proposal | None:
        """What comes next, at most so many tokens.

        Args:
            token_ids: Of the sequence, as they are now.
            num_tokens: At least 1.
        """
        self._ngram.extend(token_ids[self._num_known :])
        self._num_known = len(token_ids)
        whole = self._ngram.propose(MAX_DRAFT_TOKENS)
        if self._shadow is None and whole is not None:
            self._shadow = Shadow(whole)
        if whole is None:
            return None
        return Proposal(whole.token_ids[:num_tokens], whole.source)

    def compare(self, token_ids: SequenceOf[int], observe: Callable[[str, int, int], None]) -> None:
        """Compare what came with what was proposed, whether it was used or not.

        Args:
            token_ids: The reply's next tokens.
            observe: Told the source, how many tokens were tested, and how many were right.
        """
        if self._shadow is not None:
            outcomes = map(self._shadow.feed, token_ids)
            for outcome in filter(None, outcomes):
                observe(outcome.source, outcome.num_drafted, outcome.num_accepted)
                self._shadow = None
