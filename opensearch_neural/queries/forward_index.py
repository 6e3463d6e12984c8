"""The forward index: each document's sparse weights as bytes, and the script that rescores first-phase hits with them.

An inverted index tells which documents hold a token; to rescore thirty hits, it is read once for each query token. A forward
index tells which tokens a document holds; it is read once for each hit. Both give the same scores, from the same weights
with 9 significant bits.

A row of n tokens is 6 · n bytes of binary doc values: n hashes in ascending order, each a big-endian signed int32, then n
weights of two bytes: the upper 16 bits of a float32 without its sign, as in Lucene's FeatureField. A hash is the token's
CRC-32, shifted to the signed range, so requests need no vocabulary. Tokens with equal hashes are confused: BERT's 30,522
tokens have no such pair; 250,000 tokens likely have about seven.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

SUFFIX = "_forward"
"""The field of the rows is named after the field of the postings: `sparse`, `sparse_forward`."""
FIELD = f"sparse{SUFFIX}"
PRUNED = "pruned"
"""The script parameter that marks pruned postings, which hold less than the rows."""

# Tokens that are not in the row, and documents without a row, add nothing. The query's hashes ascend too, so each binary
# search starts where the previous one ended.
SCRIPT = """\
def rows = doc[params.field];
if (rows.size() == 0) { return 0; }
BytesRef row = rows.value;
byte[] bytes = row.bytes;
int start = row.offset;
int held = row.length / 6;
List hashes = (List) params.hashes;
List weights = (List) params.weights;
int asked = hashes.size();
double score = 0;
int low = 0;
for (int token = 0; token < asked && low < held; ++token) {
  int wanted = ((Number) hashes.get(token)).intValue();
  int high = held - 1;
  while (low <= high) {
    int middle = (low + high) >>> 1;
    int at = start + 4 * middle;
    int hash = (bytes[at] << 24) | ((bytes[at + 1] & 255) << 16) | ((bytes[at + 2] & 255) << 8) | (bytes[at + 3] & 255);
    if (hash < wanted) { low = middle + 1; }
    else if (hash > wanted) { high = middle - 1; }
    else {
      at = start + 4 * held + 2 * middle;
      int bits = ((bytes[at] & 255) << 8) | (bytes[at + 1] & 255);
      score += ((Number) weights.get(token)).floatValue() * Float.intBitsToFloat(bits << 15);
      low = middle + 1;
      break;
    }
  }
}
return score;
"""


@lru_cache(1 << 16)
def token_hash(token: str) -> int:
    """The token's CRC-32 minus 2³¹: a signed 32-bit integer, as in Java."""
    return crc32(token.encode("utf-8", "surrogatepass")) - (1 << 31)


def hashes_of(vocabulary: Iterable[str]) -> NDArray[np.int32]:
    """The hash of each token."""
    import numpy as np

    return np.array([token_hash(token) for token in vocabulary], np.int32)


def packed(hashes: NDArray[np.int32], weights: NDArray[np.float32]) -> bytes:
    """A document's row, from the hashes (n,) and weights (n,) of its tokens; weights are finite and normal."""
    import numpy as np

    order = np.argsort(hashes, kind="stable")
    bits = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32) >> 15
    return hashes[order].astype(">i4").tobytes() + bits[order].astype(">u2").tobytes()


def script_params(tokens: Mapping[str, float], field: str, *, pruned: bool = False) -> dict[str, Any]:
    """The script's parameters. The tokens' names are for people and for `tokens_of`; the script reads their hashes.

    pruned: True if the index has pruned postings. Readers of the body need it, such as `queries.certified`; the script
    ignores it.
    """
    each = sorted((token_hash(token), token, float(weight)) for token, weight in tokens.items())
    params: dict[str, Any] = {
        "field": field,
        "tokens": [token for _, token, _ in each],
        "hashes": [hash for hash, _, _ in each],
        "weights": [weight for _, _, weight in each],
    }
    return {**params, PRUNED: True} if pruned else params


def tokens_of(params: Mapping[str, Any]) -> dict[str, float]:
    """{token: weight} of a script's parameters. Raises ValueError if names, hashes and weights do not fit together."""
    tokens, hashes, weights = (params.get(name) for name in ("tokens", "hashes", "weights"))
    if not (isinstance(tokens, list) and isinstance(hashes, list) and isinstance(weights, list)):
        raise ValueError("tokens, hashes and weights must be lists")
    if not len(tokens) == len(hashes) == len(weights):
        raise ValueError(
            f"{len(tokens)} tokens, {len(hashes)} hashes and {len(weights)} weights: expected equally many"
        )
    if not all(isinstance(token, str) for token in tokens) or not all(
        type(weight) in (int, float) for weight in weights
    ):
        raise ValueError("tokens must be strings, and weights numbers")
    if not all(type(hash) is int for hash in hashes) or hashes != sorted(hashes):
        raise ValueError("hashes must be whole numbers in ascending order")
    if hashes != [token_hash(token) for token in tokens]:
        raise ValueError("the hashes do not belong to the tokens")
    try:
        return {token: float(weight) for token, weight in zip(tokens, weights, strict=True)}
    except OverflowError:
        raise ValueError("a weight is too large for a 64-bit float") from None
