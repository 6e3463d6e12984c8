"""Training data, from files to batches.

loading, formats     a path to `TrainingData`
examples, texts      queries, documents and the examples over them
splits, leaks        several sets as one, parts of one, what two sets share
sets                 the data of a run: train, dev, unseen
unlabelled_questions questions for a corpus that has none
fetch                `osn data fetch`: data sets of ir_datasets as folders
negatives            `osn data mine`; negatives_file reads what it wrote
teach                `osn data teach`; teachers look up what it wrote, teacher_ensemble puts several together
candidates           what a query of a batch is compared with
retrieval_batches    queries and documents of a batch as token ids and targets
tokenized, masking   token ids
embedding_cache      vectors of a store, computed once
"""
