"""Parts of a model, and the ops of a run of layers, independent of training and serving."""
