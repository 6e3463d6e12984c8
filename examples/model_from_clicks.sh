#!/usr/bin/env bash
# A model of your own from clicks: judgements and training pairs of a log, a published model taken further on the pairs, an
# index with it, and what it gains over BM25 for queries that it was not trained on.
#
#     examples/model_from_clicks.sh log.csv my-beir-folder MODEL docs-from-clicks
#
# log.csv       query,document,position,clicked: a row a shown document (examples/simulate_clicks.py makes one to try)
# my-beir-folder  the documents; MODEL any SPLADE, as for `osn ingest --sparse`; docs-from-clicks the index that is written
# STEPS         updates of 32 queries, 300 unless set: some minutes on two cores
# WORK          the folder for judgements and models, from-clicks unless set; the same command again goes on there
#
# The test part of the log is told from the train part by the queries' words, so no query that is measured was trained on.
# Clicks favour what was shown: read unjudged@10 before you believe a loss (docs/tutorials/clicks.md).
set -euo pipefail
log=$1 corpus=$2 model=$3 index=$4
work=${WORK:-from-clicks} steps=${STEPS:-300}

osn data from-clicks "$log" --corpus "$corpus" --output "$work/clicks"
osn train sparse --config sparse-published-start --backbone "$model" --output "$work/model" \
    --set "train=[{path: $work/clicks/pairs.jsonl}]" --set "training.steps=$steps"
if [ "$work/model-of-corpus" -ot "$work/model/osn.json" ]; then  # not there, or of a model before
    rm -rf "$work/model-of-corpus"
    osn model idf --corpus "$corpus" --model "$work/model" --output "$work/model-of-corpus"  # the table of the whole corpus
fi
osn ingest "$corpus" --index "$index" --sparse "$work/model-of-corpus"
osn eval --index "$index" --data "$work/clicks" --split test --engines bm25,bm25-sparse --measures nDCG@10 --timed 0
