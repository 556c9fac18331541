"""Commands that list what is known: algorithms, published claims, time models, formats of output."""
