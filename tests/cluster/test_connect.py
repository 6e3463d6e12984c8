"""What importing and connecting need."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_an_asynchronous_client_without_aiohttp_names_the_extra() -> None:
    code = """
import asyncio, sys
sys.modules["aiohttp"] = None
from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.errors import MissingExtra
connect(check=False).close()
try:
    asyncio.run(connect_async(check=False))
except MissingExtra as error:
    sys.exit("[async]" not in str(error))
sys.exit(1)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_module_is_imported_without_opensearch_py() -> None:
    code = "import sys, opensearch_neural.cluster.connect; sys.exit('opensearchpy' in sys.modules or 'click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
