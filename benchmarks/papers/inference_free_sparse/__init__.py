"""The evidence for inference-free sparse retrieval: the student against BM25, and what makes it good.

command.py    `osn paper inference-free-sparse`: parts "quality" and "high-idf-first", their rows and goals
ablations.py  parts "flops" and "distillation": the contributions of IDF, λ and the teachers
training.py   the small trainings of the ablations
search.py     exact sparse search without a cluster
"""
