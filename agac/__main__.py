"""The command `agac`, also as `python -m agac`: by the very Python that is named, without a
PATH."""

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script. A Ctrl-C while its modules are loaded ends it as a later one does."""
    try:
        from agac.cli.main import main as command
    except KeyboardInterrupt:
        os.write(2, b"Interrupted.\n")
        sys.exit(130)  # ExitCode.INTERRUPTED, which may not be loaded yet
    command()


if __name__ == "__main__":
    # the current folder, which `-m` puts first: its files are no modules
    if sys.path[0] and not sys.flags.safe_path:
        del sys.path[0]
    main()
