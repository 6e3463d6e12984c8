"""The experiments of the papers (`osn paper NAME`): each method's gain on judged sets, with intervals.

command.py  `osn paper`, the group of commands
jpq.py      `osn paper jpq`: how much of a dense model's ranking M bytes a document keep

Packages, each to be read from its module `command` on: `inference_free_sparse` (the student against BM25), `multi_layer`
(vectors of layers other than the last), `query_as_context` (generated queries as contexts), `tome` (two stages against one).
`benchmarks.experiment` has what all share, and docs/how-to/extend.md a whole experiment of some forty lines.
"""
