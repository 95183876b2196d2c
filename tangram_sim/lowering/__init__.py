"""From nouns to op graphs: what a transformer layer, a stage and a training step are as ops."""
