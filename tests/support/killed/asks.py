"""Stands in the place of `agac`, or of a Python that runs it, where a shell or agac itself starts a process: the fork
server (template.py) runs the command with our input, output and errors. Started by a Python without its site, and with
modules of C alone: that takes 10 ms where agac takes 400.

    asks.py agac run -a reviews
    asks.py python -P -m agac.simulator '{"seed": 7}'
"""

import _signal as signal
import _socket as socket
import array
import marshal
import os
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)


def main(program: str, arguments: list[str]) -> int:
    """Asks, passes signals on, and ends as the command ended."""
    if program == "python":
        module = arguments.index("-m") + 1
        program, arguments = arguments[module].removeprefix("agac."), arguments[module + 1 :]
    folder = os.getcwd()  # noqa: PTH109 - pathlib takes as long to import as all the rest
    asked = {"program": program, "arguments": arguments, "folder": folder, "env": dict(os.environ), "tied": True}
    number = 0
    early: list[int] = []

    def pass_on(received: int, _: object) -> None:
        if number:
            os.kill(number, received)
        else:
            early.append(received)

    # before there is a command: it may print what a test waits for before we hear its number
    for each in FORWARDED:
        signal.signal(each, pass_on)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(os.environ["AGAC_TEST_FORKS"])
    handles = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
    server.sendmsg([marshal.dumps(asked)], [handles])
    number = int(server.recv(100))
    for received in early:
        os.kill(number, received)
    code = int(server.recv(100))
    server.close()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
