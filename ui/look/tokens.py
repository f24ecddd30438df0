"""Colours of the window, as plain values: no Qt, any thread.

Every colour role of the visual design is a field here; nothing else in `ui` writes a colour down.
Colours are "#RRGGBB", veils "#AARRGGBB" (both read by QColor and by style sheets).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CodePalette:
    """Colours of highlighted code."""

    keyword: str
    name: str
    string: str
    number: str
    comment: str
    type: str
    operator: str


@dataclass(frozen=True, slots=True)
class DataPalette:
    """Colours of measured things, never used for anything else.

    Attributes:
        weights, kv, scratch, other: Parts of the memory.
        this_chat, other_chats, shared: States of KV blocks.
    """

    weights: str
    kv: str
    scratch: str
    other: str
    this_chat: str
    other_chats: str
    shared: str


@dataclass(frozen=True, slots=True)
class Palette:
    """All colour roles of one theme.

    Attributes:
        name: "light", "dark" or "contrast".
        surface: Chat, dialogs. `sidebar`: also the status bar. `raised`: composer, cards, menus,
            fields. `sunken`: code block, table head, disabled field. `pill`: inline code.
        select, track: Chosen row; empty part of bars.
        bubble, accent_soft: Own message; switched-on tool.
        border, border_2: Hairlines; outline of buttons and cards: decoration only.
        control: Outline of fields, switches, boxes.
        text, text_2, text_3: Main; secondary and icons; hints (never on `select` or `bubble`).
        ring: Focus ring, caret and curve.
        hover, pressed: Veils laid over any background.
        shadow, shadow_strength: Colour of shadows and the factor on their opacity (0: none).
        focus_width: Width of the focus ring in logical pixels.
    """

    name: str
    surface: str
    sidebar: str
    raised: str
    sunken: str
    pill: str
    select: str
    track: str
    bubble: str
    bubble_outline: str
    accent_soft: str
    border: str
    border_2: str
    control: str
    text: str
    text_2: str
    text_3: str
    disabled: str
    accent: str
    accent_hover: str
    accent_pressed: str
    on_accent: str
    accent_text: str
    ring: str
    success: str
    success_soft: str
    warn: str
    warn_soft: str
    danger: str
    danger_soft: str
    danger_fill: str
    danger_fill_hover: str
    on_danger: str
    hover: str
    pressed: str
    tooltip: str
    tooltip_text: str
    tooltip_outline: str
    shadow: str
    shadow_strength: float
    focus_width: int
    data: DataPalette
    code: CodePalette

    @property
    def is_contrast(self) -> bool:
        """Whether every surface is outlined and nothing has a shadow."""
        return self.name == "contrast"


LIGHT = Palette(
    name="light",
    surface="#FDFCFA",
    sidebar="#F4F2EE",
    raised="#FFFFFF",
    sunken="#F6F4F0",
    pill="#EFECE6",
    select="#E6E2DA",
    track="#E6E2DA",
    bubble="#E8EDF9",
    bubble_outline="#E8EDF9",
    accent_soft="#E8EDF9",
    border="#E6E3DC",
    border_2="#D8D4CB",
    control="#8C877E",
    text="#1E2329",
    text_2="#555B64",
    text_3="#666B73",
    disabled="#A9A69F",
    accent="#2C57C9",
    accent_hover="#244BB2",
    accent_pressed="#1E409A",
    on_accent="#FFFFFF",
    accent_text="#2C57C9",
    ring="#2C57C9",
    success="#1B7A4B",
    success_soft="#E4F2EA",
    warn="#8A5A00",
    warn_soft="#FBF0D9",
    danger="#BE3328",
    danger_soft="#FBE9E7",
    danger_fill="#BE3328",
    danger_fill_hover="#A62B21",
    on_danger="#FFFFFF",
    hover="#0D1E2329",
    pressed="#1A1E2329",
    tooltip="#24272C",
    tooltip_text="#F4F2EE",
    tooltip_outline="#24272C",
    shadow="#2A2112",
    shadow_strength=1.0,
    focus_width=2,
    data=DataPalette(
        weights="#3D64CC",
        kv="#1C8577",
        scratch="#B3741A",
        other="#8A857E",
        this_chat="#11695D",
        other_chats="#4F948A",
        shared="#8A4FB0",
    ),
    code=CodePalette(
        keyword="#7A3E9D",
        name="#2C57C9",
        string="#1B7A4B",
        number="#A2510F",
        comment="#6B6F66",
        type="#0F766E",
        operator="#555B64",
    ),
)

DARK = Palette(
    name="dark",
    surface="#1A1B1E",
    sidebar="#141517",
    raised="#232529",
    sunken="#141518",
    pill="#2B2D33",
    select="#2A2C31",
    track="#2F3238",
    bubble="#26324F",
    bubble_outline="#26324F",
    accent_soft="#222C47",
    border="#2A2C31",
    border_2="#373A41",
    control="#777B85",
    text="#E4E2DD",
    text_2="#AEB0B6",
    text_3="#9396A0",
    disabled="#5C5F67",
    accent="#4467DA",
    accent_hover="#4B6FE0",
    accent_pressed="#3657C0",
    on_accent="#FFFFFF",
    accent_text="#93B1FF",
    ring="#93B1FF",
    success="#62CB94",
    success_soft="#1B3327",
    warn="#E7B65C",
    warn_soft="#372C17",
    danger="#FF8F85",
    danger_soft="#3C2322",
    danger_fill="#C9473D",
    danger_fill_hover="#B93C33",
    on_danger="#FFFFFF",
    hover="#0DFFFFFF",
    pressed="#1AFFFFFF",
    tooltip="#3A3D44",
    tooltip_text="#F4F2EE",
    tooltip_outline="#3A3D44",
    shadow="#000000",
    shadow_strength=2.6,
    focus_width=2,
    data=DataPalette(
        weights="#7E9DF6",
        kv="#4DBBA6",
        scratch="#E0AE55",
        other="#8B8E96",
        this_chat="#6FE0CA",
        other_chats="#2F8577",
        shared="#C792E8",
    ),
    code=CodePalette(
        keyword="#CE9BEF",
        name="#93B1FF",
        string="#7FD1A0",
        number="#F0AE78",
        comment="#8B8E96",
        type="#6FD0C0",
        operator="#B0B2B8",
    ),
)

CONTRAST = Palette(
    name="contrast",
    surface="#000000",
    sidebar="#000000",
    raised="#000000",
    sunken="#000000",
    pill="#2B2B2B",
    select="#0B3A6B",
    track="#3A3A3A",
    bubble="#000000",
    bubble_outline="#FFFFFF",
    accent_soft="#0B3A6B",
    border="#FFFFFF",
    border_2="#FFFFFF",
    control="#FFFFFF",
    text="#FFFFFF",
    text_2="#FFFFFF",
    text_3="#E6E6E6",
    disabled="#A0A0A0",
    accent="#66B3FF",
    accent_hover="#8CC8FF",
    accent_pressed="#B3DAFF",
    on_accent="#000000",
    accent_text="#8CC8FF",
    ring="#FFE14A",
    success="#5CE68A",
    success_soft="#000000",
    warn="#FFD24A",
    warn_soft="#000000",
    danger="#FF9C94",
    danger_soft="#000000",
    danger_fill="#FF9C94",
    danger_fill_hover="#FFB8B2",
    on_danger="#000000",
    hover="#2EFFFFFF",
    pressed="#4FFFFFFF",
    tooltip="#000000",
    tooltip_text="#F4F2EE",
    tooltip_outline="#FFFFFF",
    shadow="#000000",
    shadow_strength=0.0,
    focus_width=3,
    data=DataPalette(
        weights="#6FB3FF",
        kv="#3DDBB8",
        scratch="#FFC145",
        other="#C4C4C4",
        this_chat="#7CF5DC",
        other_chats="#1FA488",
        shared="#E3A6FF",
    ),
    code=CodePalette(
        keyword="#CE9BEF",
        name="#93B1FF",
        string="#7FD1A0",
        number="#F0AE78",
        comment="#D6D6D6",
        type="#6FD0C0",
        operator="#FFFFFF",
    ),
)
