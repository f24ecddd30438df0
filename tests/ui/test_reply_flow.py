"""Blocks below each other: gaps, insets, marks, and what stays when text grows."""

import pytest
from pytestqt.qtbot import QtBot

from tests.ui.reply_helpers import NO_DEADLINE, make_parent, make_theme
from ui.markdown.blocks import Block, Frame
from ui.markdown.stream import MarkdownStream
from ui.replies.reply_flow import BlockFlow
from ui.replies.reply_gaps import gap_between


def parse(text: str) -> list[Block]:
    stream = MarkdownStream()
    stream.feed(text)
    stream.finish()
    return stream.blocks


def make_flow(qtbot: QtBot, text: str) -> BlockFlow:
    parent = make_parent(qtbot, 600, 800)
    flow = BlockFlow(make_theme(), parent)
    flow.show_blocks(parse(text), num_same=0, deadline=NO_DEADLINE)
    flow.resize(600, flow.layout_to(600))
    parent.show()
    return flow


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("a\n\nb", 10),
        ("a\n\n# b", 18),
        ("# a\n\nb", 6),
        ("# a\n\n## b", 6),
        ("- a\n- b", 4),
        ("- a\n\n  b", 10),
        ("- a\n  - b", 4),
        ("- a\n  - b\n- c", 4),
        ("1. a\n2. b", 4),
        ("1. a\n   - b", 4),
        ("- a\n1. b", 10),
        ("1. a\n- b", 10),
        ("a\n\n- b", 10),
        ("- a\n\nb", 10),
        ("- a\n- ```\n  b\n  ```", 10),
        ("a\n\n| b |\n|---|", 10),
        ("| a |\n|---|\n\nb", 14),
        ("```\na\n```\nb", 14),
        ("a\n\n---", 14),
    ],
)
def test_gap_between_blocks_follows_the_design(text, gap):
    before, after = parse(text)[-2:]
    assert gap_between(before, after) == gap


def test_flow_places_leaves_with_the_insets_of_their_containers(qtbot):
    flow = make_flow(qtbot, "a\n\n- b\n  > c\n\n1. d\n\n1000. e")
    lefts = [leaf.x() for leaf in flow.leaves]
    assert lefts[:4] == [0, 22, 22 + 16, 28]
    assert all(leaf.x() + leaf.width() == 600 for leaf in flow.leaves)
    flow.grab()


def test_flow_wide_number_makes_room_for_itself(qtbot):
    flow = make_flow(qtbot, "100000000. a")
    assert flow.leaves[0].x() > 60


def test_flow_right_to_left_item_is_mirrored(qtbot):
    flow = make_flow(qtbot, "- שלום\n\n1. שלום\n\n> שלום")
    assert [leaf.x() for leaf in flow.leaves] == [0, 0, 0]
    assert [leaf.width() for leaf in flow.leaves] == [600 - 22, 600 - 28, 600 - 16]
    flow.grab()


def test_flow_deep_nesting_keeps_a_least_width(qtbot):
    flow = make_flow(qtbot, "> " * 30 + "deep")
    assert flow.leaves[0].width() >= 40
    narrow = flow.layout_to(100)
    assert narrow > 0


def test_flow_grown_text_keeps_its_leaves(qtbot):
    flow = make_flow(qtbot, "a\n\nb")
    first, second = flow.leaves
    flow.show_blocks(parse("a\n\nb more\n\n```\nc\n```"), num_same=0, deadline=NO_DEADLINE)
    assert flow.leaves[0] is first
    assert flow.leaves[1] is second
    flow.layout_to(600)
    assert not flow.is_stale


def test_flow_block_of_another_kind_takes_the_place(qtbot):
    flow = make_flow(qtbot, "a\n\nb")
    removed: list[int] = []
    flow.leaf_removed.connect(lambda: removed.append(1))
    flow.show_blocks(parse("a\n\n| b |\n|---|"), num_same=0, deadline=NO_DEADLINE)
    flow.show_blocks(parse("a"), num_same=0, deadline=NO_DEADLINE)
    assert len(flow.leaves) == 1
    assert removed == [1, 1]


def test_flow_shows_a_leaf_only_once_it_has_its_place(qtbot):
    flow = make_flow(qtbot, "a")
    flow.show()
    qtbot.waitExposed(flow)
    flow.show_blocks(parse("a\n\n```\nb\n```"), num_same=0, deadline=NO_DEADLINE)
    assert [leaf.isVisible() for leaf in flow.leaves] == [True, False]
    flow.layout_to(600)
    assert [leaf.isVisible() for leaf in flow.leaves] == [True, True]
    assert flow.leaves[1].y() > 0


def test_flow_stops_when_time_is_up_and_goes_on(qtbot):
    flow = make_flow(qtbot, "")
    blocks = parse("a\n\nb\n\nc")
    assert flow.show_blocks(blocks, num_same=0, deadline=0.0) == 1
    assert len(flow.leaves) == 1
    assert flow.show_blocks(blocks, num_same=1, deadline=NO_DEADLINE) == 3
    assert len(flow.leaves) == 3


def test_flow_tells_how_many_new_blocks_it_shows_and_not_how_many_old_ones(qtbot):
    flow = make_flow(qtbot, "a\n\nb\n\nc")
    blocks = parse("a\n\nB\n\nC\n\nD")
    assert flow.show_blocks(blocks, num_same=0, deadline=0.0) == 2
    assert flow.show_blocks(blocks, num_same=2, deadline=0.0) == 3
    assert flow.show_blocks(blocks, num_same=3, deadline=0.0) == 4
    assert [leaf.plain_text() for leaf in flow.leaves] == ["a", "B", "C", "D"]


def test_flow_long_table_is_finished_by_advance(qtbot):
    flow = make_flow(qtbot, "| a |\n|---|\n" + "| b |\n" * 100)
    heights = [flow.layout_to(600)]
    assert not flow.advance(0.0)
    assert flow.advance(NO_DEADLINE)
    heights.append(flow.layout_to(600))
    assert heights == [101 * 32, 101 * 32]  # what is below it does not move
    flow.restyle()
    flow.layout_to(600)
    assert not flow.advance(0.0)


def test_frames_tell_neighbours_apart():
    assert Frame("item", 0, "•") != Frame("item", 1, "•")


def test_flow_empty_has_no_caret(qtbot):
    assert make_flow(qtbot, "").caret_point() is None
