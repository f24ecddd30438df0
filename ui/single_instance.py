"""One running window per profile: a second start asks the first one to come forward. GUI thread.

The first start listens on a local socket whose name comes from the profile. A socket left over
from a crash accepts no connection; it is removed and taken over. Of two starts at the same moment
the one with the lock goes on, and the other waits for its socket.
"""

import logging

from PySide6.QtCore import QDir, QLockFile, QObject, QThread, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

logger = logging.getLogger(__name__)

_RAISE, _HERE = b"raise\n", b"here\n"
_CONNECT_MS = 500
_WAIT_MS = 100
_MAX_WAITS = 30
_ANSWER_MS = 5000


class SingleInstance(QObject):
    """The claim of one process on one profile.

    Args:
        name: From `app.paths.Paths.socket_name`.
        parent: Owner.

    Attributes:
        is_answered: Whether the other process, if there is one, has said that it comes forward.

    Signals:
        raise_requested: Another start wants the window to come forward.
    """

    raise_requested = Signal()

    def __init__(self, name: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.is_answered = False
        self._name = name
        self._lock = QLockFile(QDir.temp().filePath(f"{name}.lock"))
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._answer)

    def claim(self) -> bool:
        """Take the profile; False if another process has it, which was asked to come forward."""
        if self._ask_other() or (not self._lock.tryLock(0) and self._wait_for_other()):
            return False
        if not self._server.listen(self._name):
            QLocalServer.removeServer(self._name)
            if not self._server.listen(self._name):
                # Without a socket a second start is not noticed; the program itself works.
                logger.warning("No socket for this profile: %s", self._server.errorString())
        return True

    def release(self) -> None:
        """Let another process take the profile."""
        self._server.close()
        self._lock.unlock()

    def _ask_other(self) -> bool:
        socket = QLocalSocket()
        socket.connectToServer(self._name)
        if not socket.waitForConnected(_CONNECT_MS):
            return False
        socket.write(_RAISE)
        socket.waitForBytesWritten(_CONNECT_MS)
        # One that hangs accepts connections all the same: the system does that for it.
        # The answer may have come while the question was sent: then there is no other to wait for.
        self.is_answered = socket.bytesAvailable() > 0 or socket.waitForReadyRead(_ANSWER_MS)
        socket.disconnectFromServer()
        return True

    def _wait_for_other(self) -> bool:
        for _ in range(_MAX_WAITS):
            QThread.msleep(_WAIT_MS)
            if self._ask_other():
                return True
        return False  # it is stuck, or its socket could not be made

    def _answer(self) -> None:
        while self._server.hasPendingConnections():
            socket = self._server.nextPendingConnection()
            socket.disconnected.connect(socket.deleteLater)
            socket.write(_HERE)
            self.raise_requested.emit()
