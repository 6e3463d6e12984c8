"""`osn demo`: a corpus, a model, an index, searches and a comparison, in minutes on one machine.

demo.py            the command, from corpus to report
python_docs.py     the corpus: documentation strings of the installed Python packages
python_objects.py  finds the documented objects in their sources
known_items.py     queries for any corpus: a document's first sentence
"""
