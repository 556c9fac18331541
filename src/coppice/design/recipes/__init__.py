"""Recipes: graphs made of families and expansions, read from text, and what follows from them without building them."""
