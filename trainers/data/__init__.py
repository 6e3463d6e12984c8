"""Training data, from files to batches.

command.py               `osn data`, the group of commands
loading.py               a path to `TrainingData`
formats.py               the formats of training files
examples.py              queries with positives, hard negatives and teacher scores
texts.py                 texts by id, in little memory
splits.py                merges sets and splits them
leaks.py                 finds test questions and documents in training data
settings.py              the settings of data sets, of what is held back of them, and of candidates
sets.py                  the data of a run: train, dev, unseen
unlabelled_questions.py  questions for a corpus that has none
fetch.py                 `osn data fetch`: data sets of ir_datasets as folders
negatives.py             `osn data mine`: hard negatives
teach.py                 `osn data teach`: teacher scores
teacher_models.py        loads and calls teacher models
teacher_scores.py        reads the scores that `osn data teach` wrote
teacher_ensemble.py      several teachers' scores, normalized and added
candidates.py            the documents to compare a query with in a batch
retrieval_batches.py     queries and documents of a batch as token ids and targets
tokenized.py             texts as token ids, padded
masking.py               chooses the tokens to mask
embedding_cache.py       vectors of a text store, computed once
resumable_chunks.py      long work in chunks, which can be resumed
dev_sets.py              retrieval on dev during training, on test afterwards
"""
