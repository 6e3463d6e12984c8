"""Training data, from files to batches.

command.py               `osn data`, the group of commands
loading.py               a path to `TrainingData`
formats.py               the formats of training files
examples.py              queries with positives, hard negatives and teacher scores
texts.py                 texts by id, in little memory
splits.py                several sets as one, and parts of one
leaks.py                 what a test set shares with training data
sets.py                  the data of a run: train, dev, unseen
unlabelled_questions.py  questions for a corpus that has none
fetch.py                 `osn data fetch`: data sets of ir_datasets as folders
negatives.py             `osn data mine`: hard negatives
negatives_file.py        reads the file that `osn data mine` wrote
teach.py                 `osn data teach`: teacher scores
teacher_models.py        loads and calls the models that teach
teachers.py              looks up what `osn data teach` wrote
teacher_ensemble.py      several teachers' scores, normalized and added
candidates.py            the documents that a query of a batch is compared with
retrieval_batches.py     queries and documents of a batch as token ids and targets
tokenized.py             texts as token ids, padded
masking.py               which tokens are masked
embedding_cache.py       vectors of a text store, computed once
resumable_chunks.py      long work in chunks, resumed where it stopped
dev_measures.py          retrieval on dev while training, on test afterwards
"""
