"""Can a window be partly see-through here? Asked before a menu draws a shadow around itself.

Windows, macOS and Wayland always blend windows. An X11 display does so only while a compositing
manager owns the selection `_NET_WM_CM_Sn` (Extended Window Manager Hints); without one,
see-through parts are black. Qt does not tell, so the display is asked through libxcb, which Qt's
X11 platform needs anyway.
"""

import ctypes
import ctypes.util
import logging
from functools import lru_cache

from PySide6.QtGui import QGuiApplication

logger = logging.getLogger(__name__)


class _Cookie(ctypes.Structure):
    _fields_ = (("sequence", ctypes.c_uint),)


class _Reply(ctypes.Structure):
    """Start of both replies that are read here: the answer is the fifth field."""

    _fields_ = (
        ("response_type", ctypes.c_uint8),
        ("pad", ctypes.c_uint8),
        ("sequence", ctypes.c_uint16),
        ("length", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
    )


@lru_cache(maxsize=1)
def can_blend_windows() -> bool:
    """Whether transparent parts of a window show what is below; asked once."""
    if QGuiApplication.platformName() != "xcb":
        return True
    name = ctypes.util.find_library("xcb") or "libxcb.so.1"
    try:
        return _has_compositor(ctypes.CDLL(name))
    except (OSError, AttributeError) as error:
        logger.warning("The display cannot be asked for compositing: %s", error)
        return False


def _has_compositor(xcb: ctypes.CDLL) -> bool:
    reply_pointer = ctypes.POINTER(_Reply)
    xcb.xcb_connect.restype = ctypes.c_void_p
    xcb.xcb_disconnect.argtypes = [ctypes.c_void_p]
    xcb.xcb_connection_has_error.argtypes = [ctypes.c_void_p]
    xcb.xcb_intern_atom.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint8,
        ctypes.c_uint16,
        ctypes.c_char_p,
    ]
    xcb.xcb_get_selection_owner.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    for request in (xcb.xcb_intern_atom, xcb.xcb_get_selection_owner):
        request.restype = _Cookie
    for reply in (xcb.xcb_intern_atom_reply, xcb.xcb_get_selection_owner_reply):
        reply.argtypes = [ctypes.c_void_p, _Cookie, ctypes.c_void_p]
        reply.restype = reply_pointer
    screen = ctypes.c_int(0)
    connection = xcb.xcb_connect(None, ctypes.byref(screen))
    try:
        if xcb.xcb_connection_has_error(connection):
            return False
        wanted = f"_NET_WM_CM_S{screen.value}".encode()
        asked = xcb.xcb_intern_atom(connection, 0, len(wanted), wanted)
        atom = _value(xcb.xcb_intern_atom_reply(connection, asked, None))
        asked = xcb.xcb_get_selection_owner(connection, atom)
        return _value(xcb.xcb_get_selection_owner_reply(connection, asked, None)) != 0
    finally:
        xcb.xcb_disconnect(connection)


def _value(reply: "ctypes._Pointer[_Reply]") -> int:
    """The answer in a reply, 0 if there is none. Its 32 bytes stay allocated: this runs once."""
    return int(reply.contents.value) if bool(reply) else 0
