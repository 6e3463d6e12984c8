"""The subcommands of `osn` that need no extra, one file each, and the code that they share.

doctor.py              `osn doctor`: what a cluster can do
node.py                `osn node`: a local OpenSearch
search.py              `osn search`: one query
evaluate.py            `osn eval`: engines against judged queries
evaluate_runs.py       `osn eval runs`: run files against judgements
tune.py                `osn tune`: the fastest setting that keeps the quality
lint.py                `osn lint`: mistakes in a search body
ui.py                  `osn ui`: engines beside each other in a browser
model.py               `osn model`, the group of the next commands
model_list.py          `osn model list`: published sparse models, and those on this machine
lexical.py             `osn model lexical`: a sparse model without training
idf.py                 `osn model idf`: the IDF table of a corpus
average.py             `osn model average`: the average of several models
urls.py                `osn model urls`: the URLs that a generative model may write
export.py              `osn model export`: models in the formats of other software
option_groups.py       options of several commands, old names of options, options as one argument; warnings
connection_options.py  options that name a cluster
engine_options.py      options that choose models, settings of engines, and templates
evaluation_options.py  options that `osn eval` and `osn eval runs` share
groups.py              groups of commands that are found by entry point, and listed without importing them
headings.py            help with headings, for commands with many options
reading.py             reads a corpus with a progress bar
"""
