"""Serving held against measurements: rows read, predicted, scored beside a null model; parameters fitted."""
