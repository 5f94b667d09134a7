"""Packages from npm for the tests that need one: installed once into pytest's cache, at the versions of a manifest."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.services import starts

Npm = Callable[[Path], Path]
ENVIRONMENT = dict(os.environ)
"""As it was before the tests: npm may need a proxy that they must not see."""


def npm_folder(manifest: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the packages of `manifest` in its `node_modules`; skips where npm cannot install them."""
    starts("a program of npm")
    packages = " ".join(
        f"{name}-{version}" for name, version in json.loads(manifest.read_text("utf-8"))["dependencies"].items()
    )
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip(f"node and npm are not here, so {packages} cannot be installed")
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir(packages.replace(" ", "-")) if cache else tmp_path_factory.mktemp("npm")
    with (folder / "lock").open("w") as lock:  # several workers of one session, or two sessions
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists() and (reason := _installed(manifest, folder)):
            pytest.skip(f"npm could not install {packages}: {reason}")
    return folder


def _installed(manifest: Path, folder: Path) -> str:
    """Installs into `folder`; gives what went wrong. One worker tries, the others believe it."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    failed = folder / f"failed-{session}"
    if failed.exists():
        return failed.read_text("utf-8")
    shutil.rmtree(folder / "node_modules", ignore_errors=True)  # what a killed session left makes npm leave some out
    shutil.copy(manifest, folder)
    flags = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0"]
    try:
        ran = subprocess.run(
            ["npm", "install", *flags], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=100
        )
        said = [line for line in ran.stderr.splitlines() if line.startswith("npm error")]
        reason = " ".join([f"exit code {ran.returncode}", *said[:3]]) if ran.returncode else ""
    except subprocess.TimeoutExpired:
        reason = "it took more than 100 seconds"
    if reason:
        failed.write_text(reason, encoding="utf-8")
    else:
        (folder / "complete").touch()
    return reason
