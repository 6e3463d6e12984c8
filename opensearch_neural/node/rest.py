"""A question to one node. Plain `http.client`: urllib would ask a configured proxy for 127.0.0.1."""

from __future__ import annotations

import http.client
import json
from typing import Any

from opensearch_neural.node.launch import LOOPBACK


def get(port: int, path: str, timeout: float = 5.0) -> dict[str, Any] | None:
    """The JSON object a node answers, or None while it does not (or answers something else)."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        return body if answer.status == 200 and isinstance(body, dict) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
