import signal

import pytest
from pytestqt.qtbot import QtBot

from ui.interrupts import Interrupts

NUMBERS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@pytest.mark.parametrize("number", NUMBERS)
def test_signal_ends_the_window_unless_the_program_is_to_ignore_it(
    qtbot: QtBot, number: signal.Signals
) -> None:
    ended: list[int] = []
    before = signal.signal(number, signal.SIG_DFL)
    try:
        interrupts = Interrupts(lambda: ended.append(number))
        signal.raise_signal(number)
        qtbot.waitUntil(lambda: ended == [number])
        interrupts.close()
        assert signal.signal(number, signal.SIG_IGN) is signal.SIG_DFL  # given back
        interrupts = Interrupts(lambda: ended.append(number))
        assert signal.getsignal(number) is signal.SIG_IGN
        interrupts.close()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
