"""The evidence for multi-layer representations: vectors of layers other than the last.

command.py   `osn paper multi-layer`: the parts, their rows and goals
arms.py      the compared ways to represent a document
training.py  the sets, the recipe, the trainings and their tests
layers.py    which layer's vector is nearest, and the plots of part "layers" and of λ
"""
