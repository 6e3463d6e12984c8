"""What every method shares.

settings.py          how long, how fast, in what batches; how a text becomes a vector
config.py            YAML and --set to dataclasses, and back
training_model.py    what is trained: batch in, loss terms out, model directory at the end
batches.py           what a collator hands to a model
sampling.py          which examples meet in a batch
set_range.py         where each of several sets lies in the data
loop.py              the training loop, one for all methods
trainer.py           `transformers.Trainer` for that loop
run_folder.py        the output directory: begun, interrupted, done
grad_cache.py        batches larger than memory, with the same gradient
objective.py         the loss of retrieval: a weighted sum of terms
losses.py            every paper's equations
own_loss.py          a loss function of the user's own
precision.py         float32 or bfloat16
attention.py         attention in bfloat16 on a CPU
processes.py         training in several processes
step_log.py          what a training prints
locks.py             what several processes share is made by one
"""
