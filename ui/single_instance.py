"""One running window per profile: a second start asks the first one to come forward. GUI thread.

The first start listens on a local socket whose name comes from the profile. A socket left over
from a crash accepts no connection; it is removed and taken over.
"""

import logging

from PySide6.QtCore import QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

logger = logging.getLogger(__name__)

_RAISE = b"raise\n"
_CONNECT_MS = 500


class SingleInstance(QObject):
    """The claim of one process on one profile.

    Args:
        name: From `app.paths.Paths.socket_name`.
        parent: Owner.

    Signals:
        raise_requested: Another start wants the window to come forward.
    """

    raise_requested = Signal()

    def __init__(self, name: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._name = name
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._answer)

    def claim(self) -> bool:
        """Take the profile; False if another process has it, which was asked to come forward."""
        if self._ask_other():
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

    def _ask_other(self) -> bool:
        socket = QLocalSocket()
        socket.connectToServer(self._name)
        if not socket.waitForConnected(_CONNECT_MS):
            return False
        socket.write(_RAISE)
        socket.waitForBytesWritten(_CONNECT_MS)
        socket.disconnectFromServer()
        return True

    def _answer(self) -> None:
        while self._server.hasPendingConnections():
            socket = self._server.nextPendingConnection()
            socket.disconnected.connect(socket.deleteLater)
            self.raise_requested.emit()
