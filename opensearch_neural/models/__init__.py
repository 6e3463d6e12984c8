"""What a trained model directory is: finding it, loading it, encoding with it in batches on CPU or GPU."""
