"""A client of the mux protocol, written from docs/mux-protocol.md alone.

    python3 mux_client.py host port [key]

It expects a server that echoes on every channel and offers RESUME, exercises
what the page describes and prints a line for each thing that worked. Section
numbers are the page's. Python's standard library only.
"""

import hashlib
import hmac
import os
import socket
import struct
import sys

MAGIC = b"hpmux\r\n\x00"
HELLO, AUTH, RESUME, RESUMED, ACK, TICKET = 1, 2, 3, 4, 5, 6
PING, PONG, GOAWAY = 8, 9, 10
OPEN, ACCEPT, DATA, WINDOW, RESET, STOP = 16, 17, 18, 19, 20, 21
MORE, SIZED, FIN, ABORT = 1, 2, 4, 8
PSK, RESUMES = 1, 2
REFUSED, OVER = 3, 9
MESSAGES, STREAM = 1, 2
COST = 64
MY_WINDOW, MY_SESSION, MY_FRAME = 64 << 10, 1 << 20, 32 << 10


class Channel:
    def __init__(self, number, kind, credit):
        self.number, self.kind, self.credit = number, kind, credit
        self.spent = 0  # section 6, what this side sent
        self.used, self.limit = 0, MY_WINDOW  # and received
        self.accepted = self.ended = False
        self.reset = None
        self.parts, self.size = b"", None
        self.received = []  # messages, or pieces of a stream


class Client:
    def __init__(self, address, key=b""):
        self.address, self.key = address, key
        self.channels, self.next, self.accepts = {}, 1, []
        self.received = self.numbered = self.acked = 0  # section 9
        self.ring, self.epoch, self.pongs = [], 0, []
        self.connect()
        self.handshake()

    # Bytes and frames (sections 1 and 2).

    def connect(self):
        self.sock = socket.create_connection(self.address, timeout=20)
        self.input = self.sock.makefile("rb")

    def read(self, n):
        data = self.input.read(n)
        if len(data) != n:
            raise EOFError("the connection ended")
        return data

    def frame(self, kind, channel=0, body=b"", flags=0, ack=0):
        return struct.pack(">BBHIII", kind, flags, 0, len(body), channel, ack & 0xFFFFFFFF) + body

    def read_frame(self):
        head = self.read(16)
        kind, flags, zero, length, channel, ack = struct.unpack(">BBHIII", head)
        assert zero == 0 and length <= 1 << 20
        return kind, flags, channel, ack, head, self.read(length)

    def expect(self, want):
        kind, _, _, ack, head, body = self.read_frame()
        if kind == GOAWAY:
            raise PermissionError(struct.unpack(">II", body[:8])[1])
        assert kind == want and ack == 0, (kind, want)
        return head + body, body

    # Handshake (section 3).

    def handshake(self):
        offered = RESUMES | (PSK if self.key else 0)
        name = b"python"
        hello = struct.pack(
            ">BBHIIIIIII16s16sI32sHHI8x", 1, 1, 0, offered & PSK, offered, MY_FRAME, 100, MY_WINDOW, MY_SESSION, 0,
            os.urandom(16), bytes(16), 0, os.urandom(32), len(name), 0, 1 << 20) + name
        mine = self.frame(HELLO, body=hello)
        self.sock.sendall(MAGIC + mine)
        assert self.read(8) == MAGIC
        theirs, body = self.expect(HELLO)
        fields = struct.unpack(">BBHIIIIIII16s16sI32sHHI8x", body[:116])
        assert fields[0] == fields[1] == 1 and fields[4] & ~offered == 0
        self.features, self.max_frame = fields[4], fields[5]
        self.channel_window, self.session_window = fields[7], fields[8]
        self.instance, self.session = fields[10], fields[11]
        self.credit, self.spent, self.used, self.limit = self.session_window, 0, 0, MY_SESSION
        if self.features & PSK:
            self.sock.sendall(self.frame(AUTH, body=self.proof(b"hpmux 1 client", mine + theirs)))
            _, got = self.expect(AUTH)
            assert hmac.compare_digest(got, self.proof(b"hpmux 1 server", mine + theirs))
        assert self.features & RESUMES
        _, body = self.expect(TICKET)
        self.token, self.window = body[:16], struct.unpack(">I", body[16:])[0]

    def proof(self, label, transcript, token=b""):
        return hmac.new(token + self.key, label + transcript, hashlib.sha256).digest()

    # Sending: every sequenced frame is kept until acknowledged (section 9).

    def send_frame(self, kind, channel=0, body=b"", flags=0):
        wire = self.frame(kind, channel, body, flags, self.received)
        if kind >= GOAWAY:
            self.numbered += 1
            self.ring.append((self.numbered, wire))
        self.sock.sendall(wire)

    def acknowledged(self, low):
        ahead = (low - self.acked) & 0xFFFFFFFF
        if 0 < ahead < 1 << 31:
            self.acked += ahead
            assert self.acked <= self.numbered
            self.ring = [(n, w) for n, w in self.ring if n > self.acked]

    # Receiving (sections 4 to 8).

    def step(self):
        kind, flags, number, ack, _, body = self.read_frame()
        self.acknowledged(ack)
        if kind == PING:
            self.send_frame(PONG, 0, body)
        elif kind == PONG:
            self.pongs.append(body)
        elif kind == ACK:
            assert struct.unpack(">Q", body)[0] & 0xFFFFFFFF == ack
        elif kind == GOAWAY:
            raise ConnectionAbortedError(struct.unpack(">II", body[:8])[1])
        elif kind == OPEN:
            self.channels[number] = ch = Channel(number, body[0], self.channel_window)
            ch.accepted = True
            self.accepts.append((ch, body[20:].decode()))
            self.send_frame(ACCEPT, number)
        elif kind == WINDOW and number == 0:
            self.credit = max(self.credit, struct.unpack(">Q", body)[0])
        elif number not in self.channels:
            raise AssertionError("frame for a channel that was never opened")
        else:
            self.on_channel(kind, flags, self.channels[number], body)
        if kind >= GOAWAY:
            self.received += 1
            if self.received % 16 == 0:
                self.send_frame(ACK, 0, struct.pack(">Q", self.received))

    def on_channel(self, kind, flags, ch, body):
        if kind == WINDOW:
            ch.credit = max(ch.credit, struct.unpack(">Q", body)[0])
        elif kind == ACCEPT:
            ch.accepted = True
        elif kind == RESET:
            ch.reset = struct.unpack(">I", body[:4])[0]
        elif kind == STOP:
            self.send_frame(DATA, ch.number, flags=FIN)
        elif kind == DATA:
            self.on_data(flags, ch, body)

    def on_data(self, flags, ch, body):
        if not (flags & (FIN | ABORT) and not body):
            cost = len(body) + COST
            self.used += cost
            ch.used += cost
            if ch.limit - ch.used < MY_WINDOW // 2:  # consumed at once
                ch.limit = ch.used + MY_WINDOW
                self.send_frame(WINDOW, ch.number, struct.pack(">Q", ch.limit))
            if self.limit - self.used < MY_SESSION // 2:
                self.limit = self.used + MY_SESSION
                self.send_frame(WINDOW, 0, struct.pack(">Q", self.limit))
        if ch.kind == STREAM:
            ch.received.append(body)
            ch.ended = ch.ended or bool(flags & FIN)
        elif flags & FIN:
            ch.ended = True
        elif flags & ABORT:
            ch.parts, ch.size = b"", None
        else:
            if flags & SIZED:
                ch.size, body = struct.unpack(">I", body[:4])[0], body[4:]
            ch.parts += body
            if not flags & MORE:
                assert ch.size is None or ch.size == len(ch.parts)
                ch.received.append(ch.parts)
                ch.parts, ch.size = b"", None

    def wait(self, condition):
        while not condition():
            self.step()

    # What an application calls.

    def open(self, kind, name, number=None):
        ch = Channel(self.next, kind, self.channel_window)
        self.channels[ch.number] = ch
        self.next += 2
        self.send_frame(OPEN, ch.number, struct.pack(">BBH16s", kind, 2, 0, os.urandom(16)) + name.encode())
        return ch

    def data(self, ch, body, flags=0):
        cost = len(body) + COST
        self.wait(lambda: ch.credit - ch.spent >= cost and self.credit - self.spent >= cost)
        ch.spent += cost
        self.spent += cost
        self.send_frame(DATA, ch.number, body, flags)

    def piece(self):
        return min(self.max_frame, 32 << 10, self.channel_window // 2 - COST, self.session_window // 2 - COST) - 4

    def send(self, ch, message):
        size = self.piece()
        if len(message) <= size:
            return self.data(ch, message)
        self.data(ch, struct.pack(">I", len(message)) + message[:size], MORE | SIZED)
        for at in range(size, len(message), size):
            self.data(ch, message[at:at + size], MORE if at + size < len(message) else 0)

    def receive(self, ch):
        self.wait(lambda: ch.received or ch.ended or ch.reset is not None)
        return ch.received.pop(0) if ch.received else None

    def close(self, ch):
        self.send_frame(STOP, ch.number, struct.pack(">I", 0))
        self.send_frame(DATA, ch.number, flags=FIN)

    # Resume with another connection (section 9).

    def resume(self, forge=False):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self.connect()
        self.epoch += 1
        head = struct.pack(">BBHII", RESUME, 0, 0, 80, 0) + bytes(4)
        ask = head + struct.pack(">B3xIQ16s16s", 1, self.epoch, self.received, self.session, self.instance)
        ask += bytes(32) if forge else self.proof(b"hpmux 1 resume", ask, self.token)
        self.sock.sendall(MAGIC + ask)
        assert self.read(8) == MAGIC
        frame, body = self.expect(RESUMED)
        epoch, last = struct.unpack(">I4xQ", body[:16])
        assert epoch == self.epoch
        assert hmac.compare_digest(body[16:], self.proof(b"hpmux 1 resumed", ask + frame[:-32], self.token))
        self.acknowledged(last & 0xFFFFFFFF)
        assert self.acked == last, "the server has less than it acknowledged"
        again = list(self.ring)
        for _, wire in again:
            self.sock.sendall(wire)
        return len(again)


def pattern(n, seed=0):
    return bytes((i * 7 + (i >> 8) + seed) & 0xFF for i in range(n))


def main():
    key = sys.argv[3].encode() if len(sys.argv) > 3 else b""
    c = Client((sys.argv[1], int(sys.argv[2])), key)
    print("handshake")

    ch = c.open(MESSAGES, "echo")
    for size in (0, 5, 1000, 32 << 10, 300_000):
        c.send(ch, pattern(size))
        assert c.receive(ch) == pattern(size), size
    c.wait(lambda: ch.accepted)
    print("messages")

    stream, sent, got = c.open(STREAM, "echo"), pattern(200_000, 3), b""
    for at in range(0, len(sent), 10_000):
        c.data(stream, sent[at:at + 10_000])
    c.send_frame(DATA, stream.number, flags=FIN)
    while not stream.ended or stream.received:
        got += c.receive(stream) or b""
    assert got == sent
    print("stream")

    c.send_frame(PING, 0, b"8 bytes!")
    c.wait(lambda: b"8 bytes!" in c.pongs)
    print("ping")

    c.send(ch, b"open one to me")
    c.wait(lambda: c.accepts)
    theirs, name = c.accepts[0]
    assert name == "from the server" and theirs.number % 2 == 0
    assert c.receive(theirs) == b"hello, python" and c.receive(ch) == b"open one to me"
    print("a channel of the server's")

    for turn in range(20):
        for i in range(30):
            c.send(ch, pattern(2000, turn * 30 + i))
        c.resume()
        for i in range(30):
            assert c.receive(ch) == pattern(2000, turn * 30 + i), (turn, i)
    print("resumed")

    c.close(ch)
    c.wait(lambda: ch.ended)
    try:
        c.resume(forge=True)
        raise AssertionError("resumed without the token")
    except PermissionError as refused:
        assert refused.args[0] == 6  # denied
    print("forgery refused")
    c.resume()
    c.send_frame(GOAWAY, 0, struct.pack(">II", 0, OVER))
    print("done")


if __name__ == "__main__":
    main()
