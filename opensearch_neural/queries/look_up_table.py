"""A query's look-up table as text short enough to travel in every request, and the script that reads it.

The table holds the inner product of each part of the query with each of its 256 centroids: M × 256 numbers. As JSON
numbers they take 11 bytes each, and the node parses and reads them slowly, as boxed numbers. Here each number is three
printable characters of one string: its distance from its part's least value, as a whole number of steps below 95³.

    inner product = score − offset          score = scale · Σ_m steps_m

The script's sum leaves out the least values, so that no score is negative, which OpenSearch refuses. Their negated sum is
the `offset`, a script parameter that readers may subtract. A step is about a millionth of the widest part's range: a sum of
96 parts is off by less than 6 · 10⁻⁵ of that range at worst, and usually by a tenth of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

CENTROIDS = 256
BASE = 95  # printable ASCII, from the blank to the tilde; JSON writes two of these with a backslash
FIRST = 32
CHARACTERS = 3
MOST_PARTS = 1024  # their sum of steps stays below 2³¹

# A document without a code scores 0, below all others.
_SUM = f"""\
def codes = doc[params.field];
if (codes.size() == 0) {{ return NOTHING; }}
byte[] code = codes.value.bytes;
int start = codes.value.offset;
int parts = codes.value.length;
String table = params.table;
int steps = 0;
for (int part = 0; part < parts; part++) {{
  int at = {CHARACTERS} * ({CENTROIDS} * part + (code[start + part] & 255));
  steps += {BASE * BASE} * (table.charAt(at) - {FIRST}) + {BASE} * (table.charAt(at + 1) - {FIRST})
    + table.charAt(at + 2) - {FIRST};
}}
"""
SCRIPT = _SUM.replace("NOTHING", "0") + "return params.scale * steps;"
"""Inner product + offset."""
WEIGHTED_SCRIPT = (
    _SUM.replace("NOTHING", "params.first_weight * _score")
    + "return params.first_weight * _score + params.weight * params.scale * steps;"
)
"""The query's own score plus (inner product + offset), each times its weight."""


def spread(table: NDArray[np.floating]) -> float:
    """The standard deviation of the inner product over random codes, for a table (M, 256).

    Over real documents it is similar for any M, so a difference of inner products can be judged by it.
    """
    import numpy as np

    return float(np.sqrt(table.var(axis=1, dtype=np.float64).sum()))


@dataclass(frozen=True)
class PackedTable:
    """A query's look-up table as script parameters."""

    text: str
    """M · 256 · 3 characters."""
    scale: float
    """The value of one step."""
    offset: float
    """The inner product is the script's result minus this."""

    @classmethod
    def of(cls, table: ArrayLike) -> PackedTable:
        """Pack a table (M, 256), as `Quantizer.table` makes it.

        Raises ValueError for another shape, for more than 1,024 parts, for NaN or infinity, and for a table of zeros,
        which comes from a query vector of zeros and ranks nothing.
        """
        import numpy as np

        values = np.asarray(table, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != CENTROIDS or not 1 <= len(values) <= MOST_PARTS:
            raise ValueError(
                f"a look-up table has the shape (M, {CENTROIDS}), M up to {MOST_PARTS}, not {values.shape}"
            )
        if not np.isfinite(values).all():
            raise ValueError(
                "the look-up table holds a value that is not a finite number: the query's vector is broken"
            )
        if not values.any():
            raise ValueError("the look-up table holds only zeros: a query vector of zeros ranks nothing")
        least = values.min(axis=1, keepdims=True)
        scale = float((values - least).max()) / (BASE**CHARACTERS - 1) or 1.0
        steps = np.rint((values - least) / scale).astype(np.int32).ravel()
        digits = np.empty((len(steps), CHARACTERS), dtype=np.uint8)
        for place in reversed(range(CHARACTERS)):
            steps, digits[:, place] = np.divmod(steps, BASE)
        return cls((digits + FIRST).tobytes().decode("ascii"), scale, -float(least.sum()))

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> PackedTable:
        """Read the parameters of a script. Raises ValueError if they are invalid."""
        text, scale, offset = params.get("table"), params.get("scale"), params.get("offset", 0.0)
        if not isinstance(text, str) or not text or len(text) % (CENTROIDS * CHARACTERS):
            raise ValueError(f"the table is not a text of M · {CENTROIDS} · {CHARACTERS} characters")
        if not isinstance(scale, (int, float)) or not isinstance(offset, (int, float)):
            raise ValueError("scale and offset must be numbers")
        if not all(FIRST <= ord(character) < FIRST + BASE for character in set(text)):
            raise ValueError("the look-up table holds a character that encodes no number")
        try:
            return cls(text, float(scale), float(offset))
        except OverflowError:
            raise ValueError("scale or offset is too large for a 64-bit float") from None

    @property
    def parts(self) -> int:
        """M."""
        return len(self.text) // (CENTROIDS * CHARACTERS)

    def params(self, field: str) -> dict[str, Any]:
        """The script's parameters."""
        return {"field": field, "scale": self.scale, "offset": self.offset, "table": self.text}

    def steps(self) -> NDArray[np.int64]:
        """The table in steps (M, 256), as the script reads it."""
        import numpy as np

        digits = np.frombuffer(self.text.encode("ascii"), np.uint8).reshape(-1, CENTROIDS, CHARACTERS).astype(np.int64)
        places = BASE ** np.arange(CHARACTERS)[::-1]
        return (digits - FIRST) @ places

    def scores(self, codes: NDArray[np.uint8]) -> NDArray[np.float64]:
        """The script's results for documents' codes (documents, M): (documents,)."""
        import numpy as np

        return self.scale * self.steps()[np.arange(self.parts), codes].sum(axis=1)
