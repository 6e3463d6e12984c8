"""Each document's sparse weights as bytes beside it, and the script that scores the hits of a first phase from them.

An inverted index answers which documents hold a token; to rescore thirty hits it is opened once for each token of the query.
A forward index answers which tokens a document holds: one look for each hit. The scores are those of the clauses, from the
same weights with the same 9 significant bits.

Of n tokens a row is 6 · n bytes of binary doc values: n hashes in ascending order, four bytes each with the sign first, then
their weights, two bytes each: the upper 16 bits of a float32 without its sign, as Lucene's FeatureField keeps them. A hash
is the token's CRC-32, so that no vocabulary has to travel. Two tokens of one hash would be mistaken for each other: among
BERT's 30,522 no two are alike, and among 250,000 about seven pairs are likely.
"""

from __future__ import annotations

from collections.abc import Mapping
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
"""The parameter of the script that says that the postings are pruned: they hold less than the rows."""

# Tokens that are not in the row, and documents without a row, add nothing. The query's hashes ascend too, so that each
# search goes on where the one before has ended.
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


def token_hash(token: str) -> int:
    """From −2³¹ to 2³¹ − 1, as Java has its whole numbers."""
    return crc32(token.encode("utf-8", "surrogatepass")) - (1 << 31)


def hashes_of(vocabulary: Iterable[str]) -> NDArray[np.int32]:
    """The hash of each token."""
    import numpy as np

    return np.array([token_hash(token) for token in vocabulary], np.int32)


def packed(hashes: NDArray[np.int32], weights: NDArray[np.float32]) -> bytes:
    """The row of a document whose tokens have these hashes (n,) and weights (n,), which are finite and normal."""
    import numpy as np

    order = np.argsort(hashes, kind="stable")
    bits = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32) >> 15
    return hashes[order].astype(">i4").tobytes() + bits[order].astype(">u2").tobytes()


def script_params(tokens: Mapping[str, float], field: str, *, pruned: bool = False) -> dict[str, Any]:
    """The script's parameters. The tokens' names are for people and for `tokens_of`; the script reads their hashes.

    pruned: whether the postings beside the rows hold less than these. It is noted for who reads the body, as
    `queries.certified` does; the script does not look at it.
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
        raise ValueError("tokens, hashes and weights are lists")
    if not len(tokens) == len(hashes) == len(weights):
        raise ValueError(f"{len(tokens)} tokens, {len(hashes)} hashes and {len(weights)} weights are not as many")
    if not all(isinstance(token, str) for token in tokens) or not all(
        type(weight) in (int, float) for weight in weights
    ):
        raise ValueError("tokens are texts, and weights are numbers")
    if not all(type(hash) is int for hash in hashes) or hashes != sorted(hashes):
        raise ValueError("hashes are whole numbers that ascend")
    if hashes != [token_hash(token) for token in tokens]:
        raise ValueError("the hashes are not those of the tokens")
    try:
        return {token: float(weight) for token, weight in zip(tokens, weights, strict=True)}
    except OverflowError:
        raise ValueError("weights are numbers of 64 bits") from None
