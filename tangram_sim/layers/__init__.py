"""What a model is cut into, and the ops of a run of layers: nothing of training or serving."""
