"""Fitting: a plan or a choice of algorithms made to fit a target, by limits, sizes and timings."""
