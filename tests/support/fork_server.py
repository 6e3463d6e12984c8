"""What processes that tests fork are forked from: a server that has imported what they need, in one list, since there is one
server for each process of tests."""

from __future__ import annotations

import multiprocessing
import os

METHOD = "forkserver" if os.name == "posix" else "spawn"
if METHOD == "forkserver":
    multiprocessing.set_forkserver_preload(
        [
            "opensearchpy",
            "tokenizers",
            "opensearch_neural.models.sparse.lexical",
            "ingest.job",
            "transformers.models.bert.modeling_bert",
            "torch._dynamo",
            "sentence_transformers",
        ]
    )
