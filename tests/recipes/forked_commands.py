# SPDX-License-Identifier: Apache-2.0
"""A `wenet-hs` that starts in a few milliseconds: a server has imported all commands, and forks for
each call.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CLIENT = """
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    message = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(message).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(message)
    signal.signal(signal.SIGTERM, lambda *_: server.sendall(b"stop"))
    sys.exit(int.from_bytes(server.recv(1) or b"\\1", "big"))
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """A folder for the PATH with such a `wenet-hs`. At the end its commands are ended too."""
    address, command = folder / "socket", folder / "wenet-hs"
    command.write_text(f"#!{sys.executable} -IS\n{CLIENT.format(address=str(address))}")
    command.chmod(0o755)
    line = [sys.executable, __file__, str(address)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        try:
            yield folder
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def serve(address: str) -> None:
    from wenet_hs.bin import main

    for name in main.COMMANDS:
        importlib.import_module(f"wenet_hs.bin.{name.replace('-', '_')}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                run_command(connection)
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass


def run_command(connection: socket.socket) -> None:
    """Run one command with the arguments, the folder, the environment and the open files of the
    caller.
    """
    from wenet_hs.bin import main

    size, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    message = b""
    while len(message) < int.from_bytes(size, "big"):
        message += connection.recv(1 << 20)
    sys.argv, folder, environment = json.loads(message)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=end_with_caller, args=[connection], daemon=True).start()
    code = 1
    try:
        main.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    with suppress(OSError):  # the caller was killed
        connection.sendall(bytes([code]))
    os._exit(code)


def end_with_caller(connection: socket.socket) -> None:
    """Wait until the caller is asked to end, or is killed; then ask this process to end."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve(sys.argv[1])
