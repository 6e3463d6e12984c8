"""What every method shares.

settings           how long, how fast, in what batches
config             YAML and --set to dataclasses, and back
training_model     what is trained: batch in, loss terms out, model directory at the end
batches            what a collator hands to a model
sampling           which examples meet in a batch
loop, trainer      the training loop
run_folder         the output directory: begun, interrupted, done
grad_cache         batches larger than memory, with the same gradient
objective, losses  the loss of retrieval, and every paper's equations
schedules          two stages, ramps
dev_measures       retrieval on dev while training, on test afterwards
precision, attention, processes, step_log, resumable_chunks
"""
