"""The parts that all methods share.

settings.py          length, speed and batches of a training; the loss of retrieval; how a text becomes a vector
config.py            YAML and --set to dataclasses, and back
training_model.py    the base class of a method: batch in, loss terms out, model directory at the end
batches.py           the batches that a collator hands to a model
sampling.py          which examples meet in a batch
set_range.py         the range of each set in merged data
loop.py              the training loop of all methods
trainer.py           `transformers.Trainer` for that loop
run_folder.py        the output directory: begun, interrupted, done
grad_cache.py        batches larger than memory, with the same gradient
objective.py         the loss of retrieval: a weighted sum of terms
losses.py            every paper's equations
own_loss.py          the user's own loss function
precision.py         float32 or bfloat16
attention.py         attention in bfloat16 on a CPU
processes.py         training in several processes
step_log.py          the log of a training
"""
