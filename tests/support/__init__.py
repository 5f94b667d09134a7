"""What the tests share: a project in a folder, a simulator process, the command line as a real process. What their
assertions saw is shown, as of those in tests."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{file.stem}" for file in Path(__file__).parent.glob("[a-z]*.py")))
