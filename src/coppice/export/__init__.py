"""Files that runtimes read, one module per format, and the readers of the same formats beside them."""
