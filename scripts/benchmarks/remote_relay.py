"""A relay in front of a web server that holds every request back for a while.

It forwards bytes and knows nothing of HTTP. Requests wait for `delay` seconds; answers are spliced
from socket to socket by the kernel, as they come. Connecting takes no time, unlike in a network.

Run as a program: `python -m scripts.benchmarks.remote_relay PORT DELAY`. It prints its own port.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress

PIPE = 1 << 20
"""Bytes of an answer that one call moves; the most that a pipe may have without root."""

REQUEST = 64 << 10


class Link:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.out, self.into = os.pipe()
        fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, PIPE)
        self.held = 0  # bytes in the pipe
        self.blocked = False
        self.closed = False

    def pump(self) -> bool:
        """Move what the server has sent. Return False if the server has closed the connection."""
        if not self.held:
            try:
                self.held = os.splice(
                    self.server.fileno(), self.into, PIPE, flags=os.SPLICE_F_NONBLOCK
                )
            except BlockingIOError:
                return True
            if not self.held:
                return False
        try:
            while self.held:
                self.held -= os.splice(
                    self.out, self.client.fileno(), self.held, flags=os.SPLICE_F_NONBLOCK
                )
        except BlockingIOError:
            pass
        return True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.client.close()
            self.server.close()
            os.close(self.out)
            os.close(self.into)


class Relay:
    """Accepts clients, and forwards their requests to the port of a server after a delay."""

    def __init__(self, port: int, delay: float) -> None:
        self._port, self._delay = port, delay
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._links: dict[int, Link] = {}
        self._waiting: deque[tuple[float, Link, bytes]] = deque()

    def run(self) -> None:
        """Serve for ever."""
        while True:
            timeout = None
            if self._waiting:
                timeout = max(0.0, self._waiting[0][0] - time.monotonic())
            for fd, _ in self._epoll.poll(timeout):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._links:
                    self._serve(fd, self._links[fd])
            self._forward()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            client, _ = self._listener.accept()
            link = Link(client, socket.create_connection(("127.0.0.1", self._port)))
            for each in (client, link.server):
                self._links[each.fileno()] = link
                self._epoll.register(each, select.EPOLLIN)

    def _serve(self, fd: int, link: Link) -> None:
        try:
            if fd == link.client.fileno() and not link.blocked:
                request = link.client.recv(REQUEST)
                if not request:
                    self._end(link)
                    return
                self._waiting.append((time.monotonic() + self._delay, link, request))
            elif link.pump():
                self._mind(link)
            else:
                self._end(link)
        except OSError:  # one side is gone
            self._end(link)

    def _mind(self, link: Link) -> None:
        """Wait for the client while its buffers are full, and for both sides otherwise."""
        if link.blocked == bool(link.held):
            return
        link.blocked = bool(link.held)
        client, server = (select.EPOLLOUT, 0) if link.blocked else (select.EPOLLIN, select.EPOLLIN)
        self._epoll.modify(link.client, client)
        self._epoll.modify(link.server, server)

    def _forward(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, link, request = self._waiting.popleft()
            if not link.closed:
                try:
                    link.server.sendall(request)
                except OSError:
                    self._end(link)

    def _end(self, link: Link) -> None:
        for each in (link.client, link.server):
            self._links.pop(each.fileno(), None)
        link.close()


def main() -> None:
    """Run a relay until the process is ended."""
    relay = Relay(int(sys.argv[1]), float(sys.argv[2]))
    print(relay.port, flush=True)
    relay.run()


if __name__ == "__main__":
    main()
