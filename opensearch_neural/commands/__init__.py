"""The subcommands of `osn` that need no extra: a file each, and what they share.

doctor, node                the cluster, and a local one
search, evaluate, lint      an index and its queries
lexical, idf, urls, export  what models and corpora give
models                      which sparse models there are
engine_options, reading     options that several commands have
outline                     what all commands say of themselves, without importing them
"""
