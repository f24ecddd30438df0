"""Merges for vocabularies that come with scores instead. Pure Python; any thread."""

from collections.abc import Mapping, Sequence


def merges_from_scores(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merge list that makes byte-pair encoding do what a scored vocabulary means.

    SentencePiece's BPE joins, again and again, the two neighbours whose joined piece has the
    highest score. So each way to cut a piece into two others is one merge, and merges rank by the
    score of what they make. Equal scores rank by id, cuts of one piece by the ids of their halves.

    Args:
        ids: Piece to id, of all pieces that text may become.
        scores: By id; at least as long as the largest id.

    Returns:
        Pairs in the order in which they win.

    Source: Kudo and Richardson 2018, "SentencePiece"; Sennrich et al. 2016 for the merging.
    """
    merges: list[tuple[float, int, int, int]] = []
    find = ids.get
    for piece, made in ids.items():
        rank = -scores[made]
        for cut in range(1, len(piece)):
            left = find(piece[:cut])
            if left is None:
                continue
            right = find(piece[cut:])
            if right is not None:
                merges.append((rank, made, left, right))
    merges.sort()
    names = {token_id: piece for piece, token_id in ids.items()}
    return [(names[left], names[right]) for _, _, left, right in merges]
