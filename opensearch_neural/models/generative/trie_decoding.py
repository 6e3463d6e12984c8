"""Beam search that only writes sequences of a trie: it limits TOME's stage 2 to the URLs of a corpus."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.models.generative.url_trie import OUTSIDE, Ids, Trie

if TYPE_CHECKING:
    from torch import Tensor


def search_trie(
    model: Any, batch: dict[str, Tensor], trie: Trie, *, end: int, beams: int
) -> list[list[tuple[int, float]]]:
    """For each row, (a sequence's number, score), best first: the most likely sequences of `trie`.

    Each step takes the `beams` most likely continuations in the trie. Continuations that end a sequence are results; the
    others go on until no result can improve. One beam is greedy decoding. The score is the sum of the tokens'
    log-probabilities under the whole vocabulary. batch: input_ids and attention_mask, both (rows, length); end: the token
    that ends every sequence and occurs nowhere else.
    """
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    encoded, mask = model.get_encoder()(**batch).last_hidden_state, batch["attention_mask"]
    results: list[dict[int, float]] = [{} for _ in range(len(mask))]
    rows = np.arange(len(mask))  # Rows that are not finished.
    width = 1  # Beams of a row: one for the opening, later `beams`.
    opening, node = trie.opening(end)
    tokens = torch.tensor([model.generation_config.decoder_start_token_id, *opening], device=mask.device)
    tokens = tokens.expand(len(rows), -1)
    nodes = np.full(len(rows), node)  # (rows * width,), the node of each beam
    totals = np.zeros(len(rows))  # (rows * width,), the score of each beam
    cache, cache_name = None, _name_of_cache(model)
    for step in range(trie.depth - len(opening)):
        output = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
            attention_mask=mask,
            decoder_input_ids=tokens,
            use_cache=True,
            **{cache_name: cache},
        )
        cache = output[cache_name]
        logs = output.logits.float().log_softmax(dim=-1)  # (rows * width, 1 + opening at first and then 1, vocabulary)
        if step == 0 and opening:
            totals += logs[:, :-1].gather(-1, tokens[:, 1:, None]).sum(dim=(1, 2)).cpu().numpy()
        # Each (continuations,): which beam, which token, and the node that it leads to.
        of, continuations, children = trie.children(nodes)
        scores = totals[of] + logs[:, -1][torch.from_numpy(of), torch.from_numpy(continuations)].cpu().numpy()

        # For each new beam: its old beam, the token added, its node, its score; each (rows * beams,)
        taken = np.repeat(np.arange(len(rows)) * width, beams)
        written = np.zeros(len(rows) * beams, dtype=np.int64)
        entered = np.full(len(rows) * beams, OUTSIDE)
        going = np.full(len(rows) * beams, -np.inf)
        bounds = np.searchsorted(of, np.arange(0, len(nodes) + 1, width))
        for at_row, row in enumerate(rows.tolist()):
            ended, order = _best(scores, continuations, slice(*bounds[at_row : at_row + 2]), end=end, beams=beams)
            for at in ended:
                results[row][int(trie.ends[children[at]])] = float(scores[at])
            worst = sorted(results[row].values(), reverse=True)[beams - 1 : beams]
            if len(order) and not (worst and scores[order[0]] <= worst[0]):
                here = slice(at_row * beams, at_row * beams + len(order))
                taken[here], written[here], going[here] = of[order], continuations[order], scores[order]
                entered[here] = children[order]

        alive = np.isfinite(going)
        left = np.flatnonzero(alive.reshape(-1, beams).any(axis=1))
        if not len(left):
            break
        kept = (left[:, None] * beams + np.arange(beams)).ravel()
        nodes, totals = np.where(alive, entered, OUTSIDE)[kept], going[kept]
        tokens = torch.from_numpy(written[kept])[:, None].to(mask.device)
        chosen = torch.from_numpy(taken[kept]).to(mask.device)
        if width != beams or len(left) < len(rows):
            cache.reorder_cache(chosen)
            encoded, mask = encoded[chosen], mask[chosen]
        elif beams > 1:
            # A row's beams read the same text, so the cache of the encoder's states stays as it is.
            cache.self_attention_cache.reorder_cache(chosen)
        rows, width = rows[left], beams
    return [sorted(of_row.items(), key=lambda hit: (-hit[1], hit[0]))[:beams] for of_row in results]


def _best(scores: NDArray[np.floating], continuations: Ids, of_row: slice, *, end: int, beams: int) -> tuple[Ids, Ids]:
    """(ended, going on), positions of a row's continuations, best first: those among the best `beams` that end a sequence,
    and the best `beams` that do not. With equal scores, the lower token comes first."""
    order = np.lexsort((continuations[of_row], -scores[of_row]))
    # A beam has at most one end, so 2 * beams continuations include enough that go on.
    order = of_row.start + order[: 2 * beams]
    ends = continuations[order] == end
    return order[:beams][ends[:beams]], order[~ends][:beams]


def _name_of_cache(model: Any) -> str:
    """The name of a decoder's cache, as argument and in the output: it differs between versions of transformers."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
