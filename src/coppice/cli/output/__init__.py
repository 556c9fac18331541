"""How commands print: fields, tables, sizes, progress."""
