"""Beam search that only writes sequences of a trie: it limits TOME's stage 2 to the URLs of a corpus."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.models.generative.url_trie import OUTSIDE, Ids, Trie

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Beams:
    """The beginnings of sequences that the search continues, `width` of each row; all arrays are (rows, width)."""

    nodes: Ids
    """The node that each beam has reached; `OUTSIDE` for an unused one."""
    scores: NDArray[np.floating]
    """The sum of a beam's log-probabilities; −∞ for an unused one."""
    tokens: Ids
    """The token that each beam wrote last."""
    parents: Ids
    """The beam that each continues, counted over all rows of the step before; unused ones name one of their row."""

    def of_rows(self, rows: Ids) -> Beams:
        return Beams(self.nodes[rows], self.scores[rows], self.tokens[rows], self.parents[rows])


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
    open_results = results  # Those of rows that are not finished.
    opening, node = trie.opening(end)
    tokens = torch.tensor([model.generation_config.decoder_start_token_id, *opening], device=mask.device)
    tokens = tokens.expand(len(mask), -1)
    first = np.arange(len(mask))[:, None]  # One beam for each row.
    current = Beams(np.full_like(first, node), np.zeros(first.shape), first, first)
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
            current.scores += logs[:, :-1].gather(-1, tokens[:, 1:, None]).sum(dim=(1, 2))[:, None].cpu().numpy()
        extended = extend(current, logs[:, -1], trie, open_results, end=end, width=beams)
        rows = np.flatnonzero(np.isfinite(extended.scores).any(axis=1))
        if not len(rows):
            break
        width, current = current.nodes.shape[1], extended.of_rows(rows)
        tokens = torch.from_numpy(current.tokens.reshape(-1, 1)).to(mask.device)
        parents = torch.from_numpy(current.parents.ravel()).to(mask.device)
        if width != beams or len(rows) < len(open_results):
            cache.reorder_cache(parents)
            encoded, mask = encoded[parents], mask[parents]
        elif beams > 1:
            # A row's beams read the same text, so the cache of the encoder's states stays as it is.
            cache.self_attention_cache.reorder_cache(parents)
        open_results = [open_results[row] for row in rows]
    return [sorted(of_row.items(), key=lambda hit: (-hit[1], hit[0]))[:beams] for of_row in results]


def extend(beams: Beams, logs: Tensor, trie: Trie, results: list[dict[int, float]], *, end: int, width: int) -> Beams:
    """The beams after one more token: the `width` best continuations of each row, none if they cannot improve its results.

    logs: (beams, vocabulary), the log-probabilities of the token. results: {number of a sequence: its score} of each row;
    sequences that end are added.
    """
    import torch

    beam_of, next_tokens, next_nodes = trie.children(beams.nodes.ravel())  # Each (continuations,).
    next_logs = logs[torch.from_numpy(beam_of), torch.from_numpy(next_tokens)].cpu().numpy()
    next_scores = beams.scores.ravel()[beam_of] + next_logs
    shape, starts = (len(results), width), np.arange(len(results)) * beams.nodes.shape[1]
    parents = np.broadcast_to(starts[:, None], shape).copy()
    extended = Beams(np.full(shape, OUTSIDE), np.full(shape, -np.inf), np.zeros(shape, dtype=np.int64), parents)
    bounds = np.searchsorted(beam_of, [*starts, beams.nodes.size])
    for row, of_row in enumerate(results):
        ended, order = _best(next_scores, next_tokens, slice(*bounds[row : row + 2]), end=end, beams=width)
        for at in ended:
            of_row[int(trie.ends[next_nodes[at]])] = float(next_scores[at])
        worst = sorted(of_row.values(), reverse=True)[width - 1 : width]
        if len(order) and not (worst and next_scores[order[0]] <= worst[0]):
            slots = row, slice(len(order))
            extended.nodes[slots], extended.scores[slots] = next_nodes[order], next_scores[order]
            extended.tokens[slots], extended.parents[slots] = next_tokens[order], beam_of[order]
    extended.nodes[np.isinf(extended.scores)] = OUTSIDE
    return extended


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
