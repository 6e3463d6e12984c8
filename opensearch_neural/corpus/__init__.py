"""A corpus, its queries and its judgements, read from files.

reader.py            `read_corpus`: finds the format of a path and streams its documents
documents.py         a document, and how a record becomes one
json_lines.py        JSON lines
separated_values.py  csv and tsv
parquet.py           parquet
data_sets.py         Hugging Face `datasets`
text_files.py        compressed or plain text files, line by line
first_records.py     checks that ids look like ids and texts like texts
judgements.py        queries and qrels, in the formats of BEIR and TREC
topics.py            TREC topics
sentences.py         where the sentences of a text begin and end
passages.py          a long document as windows of tokens

docs/how-to/extend.md says what a new format needs.
"""
