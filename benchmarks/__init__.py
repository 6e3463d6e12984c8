"""Benchmarks: quality, latency and throughput beside BM25, and the experiments of the papers.

    command.py            `osn bench` and `osn paper`, the groups of commands
    experiment.py         arms × seeds, kept measurements, rows, goals, result files: what all experiments share
    local_cluster.py      the cluster that a benchmark searches: the user's, or a node of its own; searches of judged queries
    cluster_bm25.py       OpenSearch's BM25, tuned on train questions, as a rival
    beir_parts.py         parts of BEIR data sets as sets of their own; checks that a --work folder has the same data
    turns.py              arms timed in turns, and their ratios
    options.py            options of the commands: fields of a dataclass, lists of numbers, --part
    render.py             rows as tables and pages
    plots.py              plots of rows: curves, and quality against cost
    docs_tables.py        writes the tables of docs/ and of the README
    score_kept.py         `osn bench score-kept`: what two phases lose against one
    published_figures.py  `osn bench published`: figures that others published, measured again

Packages: `papers` (`osn paper`), `load` (`osn bench load`), `bm25_sparse`, `large_sparse`, `grown` (indexes of any
size), `speed` (encoding and writing), `demo` (`osn demo`). `results` holds the recorded results.
"""
