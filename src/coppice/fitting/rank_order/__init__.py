"""Orders of ranks whose groups cross few links."""
