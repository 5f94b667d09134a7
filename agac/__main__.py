"""`python -m agac`: the command `agac`, by the very Python that is named. It needs no PATH."""

import sys

if __name__ == "__main__":
    if sys.path[0] and not sys.flags.safe_path:  # the current folder, which `-m` puts first: its files are no modules
        del sys.path[0]
    from agac.cli.main import main

    main()
