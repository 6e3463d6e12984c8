"""A corpus, its queries and its judgements, read from files.

reader             `read_corpus`: which format a path has, and its documents as a stream
documents          a document, and how a record becomes one
json_lines, separated_values, parquet, data_sets    a reader a format
first_records      whether the id of a corpus is an id, and its text a text
text_files         compressed or plain files as lines
judgements         queries, qrels, and both of a BEIR folder
passages           a document as windows of tokens
"""
