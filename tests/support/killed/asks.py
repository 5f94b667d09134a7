"""Stands in the place of `agac`, or of a Python that runs it, where a shell or agac itself starts a process: the fork
server (template.py) runs the command with our input, output and errors. Started by a Python without its site: that
takes 20 ms where agac takes 400.

    asks.py agac run -a reviews
    asks.py python -P -m agac.simulator --ready-line
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)


def main(program: str, arguments: list[str]) -> int:
    """Asks, passes signals on, and ends as the command ended."""
    if program == "python":
        module = arguments.index("-m") + 1
        program, arguments = arguments[module].removeprefix("agac."), arguments[module + 1 :]
    folder = os.getcwd()  # noqa: PTH109 - pathlib takes as long to import as all the rest
    asked = {"program": program, "arguments": arguments, "folder": folder, "env": dict(os.environ), "tied": True}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.environ["AGAC_TEST_FORKS"])
        socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
        number = int(server.recv(100))
        for each in FORWARDED:
            signal.signal(each, lambda received, _: os.kill(number, received))
        code = int(server.recv(100))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
