"""Names of clusters that leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

# Stops clusters when its stdin closes: at the end of a test, and also when pytest is killed in the middle of one.
CLEANER = "import sys; from opensearch_neural import node; sys.stdin.read(); node.stop(sys.argv[1], purge=True)"


@pytest.fixture
def never_started() -> str:
    """A name that no cluster has or had, and no other test, which may run at the same time, uses."""
    return f"never-started-{uuid.uuid4().hex[:6]}"


@pytest.fixture(scope="module")
def cleaned_name() -> Iterator[Callable[[str], str]]:
    """Makes names of clusters that are stopped and removed in the end, whatever happens."""
    cleaners = []

    def make(purpose: str) -> str:
        name = f"osn-test-{purpose}-{uuid.uuid4().hex[:6]}"
        cleaners.append(
            subprocess.Popen([sys.executable, "-c", CLEANER, name], stdin=subprocess.PIPE, start_new_session=True)
        )
        return name

    yield make
    for cleaner in cleaners:
        assert cleaner.stdin is not None
        cleaner.stdin.close()
    for cleaner in cleaners:
        cleaner.wait(60)
